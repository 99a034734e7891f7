// Vector helpers of the AVX2 + FMA + F16C kernels. Include from *_avx2.cc only.
// Everything here is always inlined: see half.h for why nothing may have external linkage. For the
// same reason these files use no standard containers or algorithms.
#ifndef PYVLM_KERNELS_SIMD_AVX2_H_
#define PYVLM_KERNELS_SIMD_AVX2_H_

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "csrc/kernels/half.h"

#define PYVLM_INLINE static inline __attribute__((always_inline))

namespace pyvlm::kernels::avx2 {

PYVLM_INLINE size_t Min(size_t a, size_t b) { return a < b ? a : b; }
PYVLM_INLINE size_t CeilDiv(size_t a, size_t b) { return (a + b - 1) / b; }
PYVLM_INLINE size_t RoundUp(size_t a, size_t b) { return CeilDiv(a, b) * b; }

PYVLM_INLINE __m256 Load8(const float* p) { return _mm256_loadu_ps(p); }
PYVLM_INLINE __m256 Load8(const Half* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
PYVLM_INLINE void Store8(__m256 x, float* p) { _mm256_storeu_ps(p, x); }
PYVLM_INLINE void Store8(__m256 x, Half* p) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
PYVLM_INLINE float Load1(const float* p) { return *p; }
PYVLM_INLINE float Load1(const Half* p) { return _cvtsh_ss(p->bits); }

// The first `count` lanes (0..8); other lanes are zero on load and untouched on store.
PYVLM_INLINE __m256i FirstLanes(size_t count) {
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), lanes);
}
PYVLM_INLINE __m256 LoadFirst(const float* p, size_t count) {
  return _mm256_maskload_ps(p, FirstLanes(count));
}
PYVLM_INLINE void StoreFirst(__m256 x, float* p, size_t count) {
  _mm256_maskstore_ps(p, FirstLanes(count), x);
}

PYVLM_INLINE float Sum(__m256 x) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
PYVLM_INLINE float Max(__m256 x) {
  __m128 s = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  s = _mm_max_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}

// exp(x) = 2^n 2^f with a polynomial for 2^f on [-0.5, 0.5]; relative error below 2e-7 + 2e-8 |x|.
// Exactly 0 below -87.3 (a masked score must weigh nothing), saturated above 88.3; NaN stays NaN
// (operand order of min and max matters).
PYVLM_INLINE __m256 Exp(__m256 x) {
  const __m256 lowest = _mm256_set1_ps(-87.33f);
  const __m256 log2e = _mm256_set1_ps(1.44269504f);
  // Adding 1.5 * 2^23 rounds to an integer, which then lies in the low bits of the sum.
  const __m256 magic = _mm256_set1_ps(12582912.0f);
  const __m256 vanishes = _mm256_cmp_ps(x, lowest, _CMP_LT_OQ);
  x = _mm256_max_ps(lowest, _mm256_min_ps(_mm256_set1_ps(88.37f), x));
  const __m256 shifted = _mm256_fmadd_ps(x, log2e, magic);
  const __m256 f = _mm256_fmsub_ps(x, log2e, _mm256_sub_ps(shifted, magic));
  __m256 p = _mm256_set1_ps(1.3264727533e-3f);
  p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(9.6715127095e-3f));
  p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(5.5507337420e-2f));
  p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(2.4022242084e-1f));
  p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(6.9314697760e-1f));
  p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1.0f));
  const __m256i exponent = _mm256_slli_epi32(_mm256_castps_si256(shifted), 23);
  p = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), exponent));
  return _mm256_andnot_ps(vanishes, p);
}

PYVLM_INLINE __m256 Negate(__m256 x) { return _mm256_xor_ps(x, _mm256_set1_ps(-0.0f)); }

// x / (1 + exp(-u))
PYVLM_INLINE __m256 TimesSigmoid(__m256 x, __m256 u) {
  return _mm256_div_ps(x, _mm256_add_ps(_mm256_set1_ps(1.0f), Exp(Negate(u))));
}
PYVLM_INLINE __m256 Silu(__m256 x) { return TimesSigmoid(x, x); }

// 0.5 x (1 + tanh(u)) = x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3)
PYVLM_INLINE __m256 GeluTanh(__m256 x) {
  const __m256 cubic = _mm256_fmadd_ps(_mm256_mul_ps(x, x), _mm256_set1_ps(0.0713548163f),
                                       _mm256_set1_ps(1.5957691216f));
  return TimesSigmoid(x, _mm256_mul_ps(x, cubic));
}

// Transposes 8 vectors in place. Pairs, then quads, then 128-bit halves.
PYVLM_INLINE void Transpose(__m256& r0, __m256& r1, __m256& r2, __m256& r3, __m256& r4, __m256& r5,
                            __m256& r6, __m256& r7) {
  const __m256 a0 = _mm256_unpacklo_ps(r0, r1), a1 = _mm256_unpackhi_ps(r0, r1);
  const __m256 a2 = _mm256_unpacklo_ps(r2, r3), a3 = _mm256_unpackhi_ps(r2, r3);
  const __m256 a4 = _mm256_unpacklo_ps(r4, r5), a5 = _mm256_unpackhi_ps(r4, r5);
  const __m256 a6 = _mm256_unpacklo_ps(r6, r7), a7 = _mm256_unpackhi_ps(r6, r7);
  const __m256 b0 = _mm256_shuffle_ps(a0, a2, 0x44), b1 = _mm256_shuffle_ps(a0, a2, 0xee);
  const __m256 b2 = _mm256_shuffle_ps(a1, a3, 0x44), b3 = _mm256_shuffle_ps(a1, a3, 0xee);
  const __m256 b4 = _mm256_shuffle_ps(a4, a6, 0x44), b5 = _mm256_shuffle_ps(a4, a6, 0xee);
  const __m256 b6 = _mm256_shuffle_ps(a5, a7, 0x44), b7 = _mm256_shuffle_ps(a5, a7, 0xee);
  r0 = _mm256_permute2f128_ps(b0, b4, 0x20), r4 = _mm256_permute2f128_ps(b0, b4, 0x31);
  r1 = _mm256_permute2f128_ps(b1, b5, 0x20), r5 = _mm256_permute2f128_ps(b1, b5, 0x31);
  r2 = _mm256_permute2f128_ps(b2, b6, 0x20), r6 = _mm256_permute2f128_ps(b2, b6, 0x31);
  r3 = _mm256_permute2f128_ps(b3, b7, 0x20), r7 = _mm256_permute2f128_ps(b3, b7, 0x31);
}

}  // namespace pyvlm::kernels::avx2

#endif  // PYVLM_KERNELS_SIMD_AVX2_H_
