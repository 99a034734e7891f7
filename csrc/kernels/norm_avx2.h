// Row norms, shared by the norm kernels and the prologue of linear: same code, same bits.
#ifndef PYVLM_KERNELS_NORM_AVX2_H_
#define PYVLM_KERNELS_NORM_AVX2_H_

#include "csrc/kernels/simd_avx2.h"

namespace pyvlm::kernels::avx2 {

PYVLM_INLINE float SqrtF(float x) { return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x))); }

// Sum of (x - shift)^2; lanes past the end count as shift.
PYVLM_INLINE float SumSquares(const float* x, size_t width, float shift) {
  const __m256 center = _mm256_set1_ps(shift);
  __m256 even = _mm256_setzero_ps(), odd = even;
  size_t k = 0;
  for (; k + 16 <= width; k += 16) {
    const __m256 a = _mm256_sub_ps(Load8(x + k), center);
    const __m256 b = _mm256_sub_ps(Load8(x + k + 8), center);
    even = _mm256_fmadd_ps(a, a, even);
    odd = _mm256_fmadd_ps(b, b, odd);
  }
  for (; k < width; k += 8) {
    const __m256i mask = FirstLanes(Min(8, width - k));
    const __m256 a = _mm256_and_ps(_mm256_sub_ps(_mm256_maskload_ps(x + k, mask), center),
                                   _mm256_castsi256_ps(mask));
    even = _mm256_fmadd_ps(a, a, even);
  }
  return Sum(_mm256_add_ps(even, odd));
}

PYVLM_INLINE float SumRow(const float* x, size_t width) {
  __m256 sum = _mm256_setzero_ps();
  for (size_t k = 0; k < width; k += 8) {
    sum = _mm256_add_ps(sum, LoadFirst(x + k, Min(8, width - k)));
  }
  return Sum(sum);
}

// y may be x.
PYVLM_INLINE void RmsNormRow(const float* x, const float* weight, size_t width, float eps,
                             float* y) {
  const float mean = SumSquares(x, width, 0.0f) / static_cast<float>(width);
  const __m256 scale = _mm256_set1_ps(1.0f / SqrtF(mean + eps));
  size_t k = 0;
  for (; k + 8 <= width; k += 8) {
    Store8(_mm256_mul_ps(_mm256_mul_ps(Load8(x + k), scale), Load8(weight + k)), y + k);
  }
  if (k < width) {
    const size_t tail = width - k;
    const __m256 value = _mm256_mul_ps(LoadFirst(x + k, tail), scale);
    StoreFirst(_mm256_mul_ps(value, LoadFirst(weight + k, tail)), y + k, tail);
  }
}

}  // namespace pyvlm::kernels::avx2

#endif  // PYVLM_KERNELS_NORM_AVX2_H_
