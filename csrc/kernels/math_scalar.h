// Functions shared by the portable kernels.
#ifndef PYVLM_KERNELS_MATH_SCALAR_H_
#define PYVLM_KERNELS_MATH_SCALAR_H_

#include <cmath>
#include <cstddef>

#include "csrc/kernels/half.h"

namespace pyvlm::kernels {

static inline float ScalarFromBits(size_t bits) {
  return FloatFromBits(static_cast<uint32_t>(bits));
}

static inline float Silu(float x) { return x / (1.0f + std::exp(-x)); }

// 0.5 x (1 + tanh(u)) = x / (1 + exp(-2u)), which does not cancel for negative x.
static inline float GeluTanh(float x) {
  const float u = 0.7978845608028654f * (x + 0.044715f * x * x * x);
  return x / (1.0f + std::exp(-2.0f * u));
}

static inline void RmsNormRow(const float* x, const float* weight, size_t width, float eps,
                              float* y) {
  double sum = 0;
  for (size_t k = 0; k < width; ++k) sum += static_cast<double>(x[k]) * x[k];
  const auto scale = static_cast<float>(1.0 / std::sqrt(sum / static_cast<double>(width) + eps));
  for (size_t k = 0; k < width; ++k) y[k] = x[k] * scale * weight[k];
}

// Rotates the halves of x by the angles of one rope row (cosines, then sines) and scales.
static inline void RotateRow(const float* x, const float* rope, size_t head_dim, float scale,
                             float* y) {
  const size_t half = head_dim / 2;
  for (size_t i = 0; i < half; ++i) {
    const float a = x[i], b = x[half + i], cosine = rope[i], sine = rope[half + i];
    y[i] = (a * cosine - b * sine) * scale;
    y[half + i] = (b * cosine + a * sine) * scale;
  }
}

}  // namespace pyvlm::kernels

#endif  // PYVLM_KERNELS_MATH_SCALAR_H_
