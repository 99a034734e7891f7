// Rows of activations as int16, for the products with 8-bit weights (q8.h).
#ifndef PYVLM_KERNELS_QUANTIZE_AVX2_H_
#define PYVLM_KERNELS_QUANTIZE_AVX2_H_

#include "csrc/kernels/norm_avx2.h"
#include "csrc/kernels/q8.h"
#include "csrc/kernels/scratch.h"

namespace pyvlm::kernels::avx2 {

// The largest magnitude of a row as float bits: NaN above infinity above all numbers.
PYVLM_INLINE uint32_t LargestMagnitudeBits(const float* x, size_t width) {
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  __m256i largest = _mm256_setzero_si256();
  for (size_t k = 0; k < width; k += 8) {
    const __m256 value = k + 8 <= width ? Load8(x + k) : LoadFirst(x + k, width - k);
    largest = _mm256_max_epi32(largest, _mm256_and_si256(_mm256_castps_si256(value), magnitude));
  }
  __m128i m = _mm_max_epi32(_mm256_castsi256_si128(largest), _mm256_extracti128_si256(largest, 1));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1));
  return static_cast<uint32_t>(_mm_cvtsi128_si32(m));
}

PYVLM_INLINE void Store16(__m256 low, __m256 high, __m256 factor, int16_t* out) {
  const __m256i a = _mm256_cvtps_epi32(_mm256_mul_ps(low, factor));
  const __m256i b = _mm256_cvtps_epi32(_mm256_mul_ps(high, factor));
  const __m256i ordered = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), ordered);
}

// Writes Q8PaddedInputs(width) values, those past the row zero, and returns the row's scale.
PYVLM_INLINE float QuantizeRow(const float* x, size_t width, int16_t* out) {
  const uint32_t bits = LargestMagnitudeBits(x, width);
  const float magnitude = FloatFromBits(bits);
  if (bits >= kQ8InfinityBits || magnitude < kQ8LeastMagnitude) {
    std::memset(out, 0, Q8PaddedInputs(width) * sizeof *out);
    return bits >= kQ8InfinityBits ? FloatFromBits(0x7fc00000u) : 0.0f;
  }
  const __m256 factor = _mm256_set1_ps(kQ8MaxActivation / magnitude);
  size_t k = 0;
  for (; k + 16 <= width; k += 16) Store16(Load8(x + k), Load8(x + k + 8), factor, out + k);
  for (; k < Q8PaddedInputs(width); k += 16) {
    const size_t left = k < width ? width - k : 0;
    const __m256 low = left > 0 ? LoadFirst(x + k, Min(8, left)) : _mm256_setzero_ps();
    const __m256 high = left > 8 ? LoadFirst(x + k + 8, Min(8, left - 8)) : _mm256_setzero_ps();
    Store16(low, high, factor, out + k);
  }
  return magnitude / kQ8MaxActivation;
}

// Quantised rows in the scratch of the calling thread.
struct QuantizedRows {
  size_t padded = 0;  // values per row
  float *scales = nullptr, *normed = nullptr;
  int16_t* values = nullptr;

  bool Allocate(size_t max_rows, size_t in_size) {
    padded = Q8PaddedInputs(in_size);
    const size_t head = RoundUp(max_rows, 16), normed_size = RoundUp(in_size, 16);
    scales = ThreadScratch(ScratchSlot::activations, head + normed_size + max_rows * padded / 2);
    if (scales == nullptr) return false;
    normed = scales + head;
    values = static_cast<int16_t*>(static_cast<void*>(normed + normed_size));
    return true;
  }

  // Rows first.. of x, after the norm if there is one.
  void Fill(const LinearParams<int8_t>& p, size_t first, size_t count) {
    const float eps = FloatFromBits(static_cast<uint32_t>(p.eps_bits));
    for (size_t r = 0; r < count; ++r) {
      const float* x = p.x.data() + (first + r) * p.in_size;
      if ((p.flags & kRmsNorm) != 0) {
        RmsNormRow(x, p.norm_weight.data(), p.in_size, eps, normed);
        x = normed;
      }
      scales[r] = QuantizeRow(x, p.in_size, values + r * padded);
    }
  }
};

}  // namespace pyvlm::kernels::avx2

#endif  // PYVLM_KERNELS_QUANTIZE_AVX2_H_
