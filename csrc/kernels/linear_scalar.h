// The last steps of the portable matrix products, from the 16 sums of a panel to y.
#ifndef PYVLM_KERNELS_LINEAR_SCALAR_H_
#define PYVLM_KERNELS_LINEAR_SCALAR_H_

#include <algorithm>

#include "csrc/kernels/math_scalar.h"
#include "csrc/kernels/params.h"

namespace pyvlm::kernels::scalar {

template <typename W>
static inline bool HasValidFlags(const LinearParams<W>& p) {
  return (p.flags & kSwiGlu) == 0 || (p.flags & (kBias | kGelu)) == 0;
}

template <typename W>
static inline size_t NumPanels(const LinearParams<W>& p) {
  return (p.flags & kSwiGlu) != 0 ? (p.out_size / 2 + 7) / 8 : (p.out_size + 15) / 16;
}

template <typename W>
static inline void StoreSwiGlu(const LinearParams<W>& p, const float* acc, size_t row,
                               size_t panel) {
  constexpr size_t kHalf = kPanelRows / 2;
  const size_t width = p.out_size / 2, first = panel * kHalf;
  float* y = p.y.data() + row * width + first;
  const float* residual = p.residual.data() + row * width + first;
  for (size_t r = 0; r < std::min(kHalf, width - first); ++r) {
    const float value = Silu(acc[r]) * acc[kHalf + r];
    y[r] = (p.flags & kResidual) != 0 ? value + residual[r] : value;
  }
}

template <typename W>
static inline void StorePlain(const LinearParams<W>& p, const float* acc, size_t row,
                              size_t panel) {
  const size_t first = panel * kPanelRows;
  float* y = p.y.data() + row * p.out_size + first;
  const float* residual = p.residual.data() + row * p.out_size + first;
  for (size_t r = 0; r < std::min(kPanelRows, p.out_size - first); ++r) {
    float value = acc[r];
    if ((p.flags & kBias) != 0) value += p.bias.data()[first + r];
    if ((p.flags & kGelu) != 0) value = GeluTanh(value);
    if ((p.flags & kResidual) != 0) value += residual[r];
    y[r] = value;
  }
}

template <typename W>
static inline void StorePanel(const LinearParams<W>& p, const float* acc, size_t row,
                              size_t panel) {
  (p.flags & kSwiGlu) != 0 ? StoreSwiGlu(p, acc, row, panel) : StorePlain(p, acc, row, panel);
}

}  // namespace pyvlm::kernels::scalar

#endif  // PYVLM_KERNELS_LINEAR_SCALAR_H_
