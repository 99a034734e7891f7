// Rotation and cache rows, shared by the attention kernels.
#ifndef PYVLM_KERNELS_ATTENTION_AVX2_H_
#define PYVLM_KERNELS_ATTENTION_AVX2_H_

#include "csrc/kernels/params.h"
#include "csrc/kernels/simd_avx2.h"

namespace pyvlm::kernels::avx2 {

PYVLM_INLINE void Store4(__m128 x, float* p) { _mm_storeu_ps(p, x); }
PYVLM_INLINE void Store4(__m128 x, Half* p) {
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}

// y = scale * (x rotated by the angles of one rope row), narrowed to the type of y. Four lanes at a
// time: half a head is a multiple of 4. y may be x.
template <typename T>
PYVLM_INLINE void RotateRow(const float* x, const float* rope, size_t head_dim, float scale, T* y) {
  const size_t half = head_dim / 2;
  const __m128 factor = _mm_set1_ps(scale);
  for (size_t i = 0; i < half; i += 4) {
    const __m128 a = _mm_loadu_ps(x + i), b = _mm_loadu_ps(x + half + i);
    const __m128 cosine = _mm_loadu_ps(rope + i), sine = _mm_loadu_ps(rope + half + i);
    const __m128 low = _mm_fmsub_ps(a, cosine, _mm_mul_ps(b, sine));
    const __m128 high = _mm_fmadd_ps(b, cosine, _mm_mul_ps(a, sine));
    Store4(_mm_mul_ps(low, factor), y + i);
    Store4(_mm_mul_ps(high, factor), y + half + i);
  }
}

template <typename P>
PYVLM_INLINE const float* QkvRow(const P& p, size_t row) {
  return p.qkv.data() + row * (p.num_heads + 2 * p.num_kv_heads) * p.head_dim;
}

template <typename P>
PYVLM_INLINE size_t HeadOffset(const P& p, size_t slot, size_t head) {
  return CacheOffset(p.layer, slot, head, p.num_slots, p.num_kv_heads, p.capacity, p.head_dim);
}

// Writes position `position` of one slot and kv head from a qkv row.
template <typename P>
PYVLM_INLINE void WriteKeyValue(const P& p, const float* qkv, size_t slot, size_t head,
                                size_t position) {
  const size_t at = HeadOffset(p, slot, head) + position * p.head_dim;
  const float* key = qkv + (p.num_heads + head) * p.head_dim;
  const float* value = key + p.num_kv_heads * p.head_dim;
  RotateRow(key, p.rope.data() + position * p.head_dim, p.head_dim, 1.0f, p.k_cache.data() + at);
  for (size_t d = 0; d < p.head_dim; d += 8) Store8(Load8(value + d), p.v_cache.data() + at + d);
}

}  // namespace pyvlm::kernels::avx2

#endif  // PYVLM_KERNELS_ATTENTION_AVX2_H_
