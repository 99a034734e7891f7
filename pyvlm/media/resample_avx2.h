/* Weighted sums of 8-bit RGB pixels by AVX2, in exact integers.
 *
 * A weight is a fixed-point number of WEIGHT_BITS. It goes in two halves of 12 bits, so that a
 * 16-bit multiply-add takes two taps at once; sums wrap modulo 2^32 and come out the same in
 * whatever order they are made.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { WEIGHT_BITS = 22, HALF_BITS = 12, ROWS_AT_ONCE = 4, READ_BEYOND = 32 };

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

#define PYVLM_AVX2 __attribute__((target("avx2")))

static int has_avx2(void) { return __builtin_cpu_supports("avx2") != 0; }

/* Rounds eight sums, whose halves are given, to levels of 0 to 255 (still 32 bits wide). */
PYVLM_AVX2 static inline __m256i whole_sums(__m256i low, __m256i high) {
  return _mm256_add_epi32(low, _mm256_slli_epi32(high, HALF_BITS));
}

PYVLM_AVX2 static inline __m256i levels(__m256i sums) {
  return _mm256_srai_epi32(_mm256_add_epi32(sums, _mm256_set1_epi32(1 << (WEIGHT_BITS - 1))),
                           WEIGHT_BITS);
}

/* One output pixel in each of ROWS_AT_ONCE rows. `weights` holds, for each group of four taps, 16
 * low and 16 high halves: taps 0 1 four times, then taps 2 3 four times. */
PYVLM_AVX2 static inline void pixel_in_rows(const uint8_t* const rows[ROWS_AT_ONCE], int start,
                                            int num_groups, const int16_t* weights,
                                            uint32_t out[ROWS_AT_ONCE]) {
  /* Pixels 0 1 in the lower lane, 2 3 in the upper: r0 r1 g0 g1 b0 b1 as 16-bit numbers. */
  const __m256i pairs =
      _mm256_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1, 6, -1, 9, -1, 7,
                       -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1);
  __m256i low[ROWS_AT_ONCE], high[ROWS_AT_ONCE];
  for (int row = 0; row < ROWS_AT_ONCE; ++row) low[row] = high[row] = _mm256_setzero_si256();
  for (int group = 0; group < num_groups; ++group, weights += 32) {
    const __m256i low_weights = _mm256_loadu_si256((const __m256i*)weights);
    const __m256i high_weights = _mm256_loadu_si256((const __m256i*)(weights + 16));
    const ptrdiff_t at = 3 * ((ptrdiff_t)start + 4 * group);
    for (int row = 0; row < ROWS_AT_ONCE; ++row) {
      const __m128i bytes = _mm_loadu_si128((const __m128i*)(rows[row] + at));
      const __m256i taps = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(bytes), pairs);
      low[row] = _mm256_add_epi32(low[row], _mm256_madd_epi16(taps, low_weights));
      high[row] = _mm256_add_epi32(high[row], _mm256_madd_epi16(taps, high_weights));
    }
  }
  for (int row = 0; row < ROWS_AT_ONCE; ++row) {
    const __m256i sums = whole_sums(low[row], high[row]);
    const __m128i both =
        _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
    const __m128i level =
        _mm_srai_epi32(_mm_add_epi32(both, _mm_set1_epi32(1 << (WEIGHT_BITS - 1))), WEIGHT_BITS);
    const __m128i words = _mm_packs_epi32(level, level);
    out[row] = (uint32_t)_mm_cvtsi128_si32(_mm_packus_epi16(words, words));
  }
}

/* ROWS_AT_ONCE rows of `width` output pixels. READ_BEYOND bytes behind each input row are read. */
PYVLM_AVX2 static void blend_rows(const uint8_t* const rows[ROWS_AT_ONCE],
                                  uint8_t* const out[ROWS_AT_ONCE], int width, const int* starts,
                                  const int* num_groups, const int16_t* weights,
                                  ptrdiff_t weights_step) {
  uint32_t pixels[ROWS_AT_ONCE];
  const int last = width - 1;
  for (int x = 0; x < last; ++x, weights += weights_step) {
    pixel_in_rows(rows, starts[x], num_groups[x], weights, pixels);
    /* Four bytes in one store: the next pixel overwrites the fourth. */
    for (int row = 0; row < ROWS_AT_ONCE; ++row)
      memcpy(out[row] + 3 * (ptrdiff_t)x, &pixels[row], 4);
  }
  pixel_in_rows(rows, starts[last], num_groups[last], weights, pixels);
  /* Behind the last pixel another row begins. */
  for (int row = 0; row < ROWS_AT_ONCE; ++row)
    memcpy(out[row] + 3 * (ptrdiff_t)last, &pixels[row], 3);
}

/* 16 bytes of an output row. `weights` holds a low and a high pair of halves for two taps each. */
PYVLM_AVX2 static inline __m128i bytes_in_column(const uint8_t* from, ptrdiff_t stride,
                                                 int num_taps, const int32_t* weights) {
  __m256i low_a = _mm256_setzero_si256(), low_b = low_a, high_a = low_a, high_b = low_a;
  for (int tap = 0; tap < num_taps; tap += 2, weights += 2) {
    const uint8_t* next = tap + 1 < num_taps ? from + stride : from; /* its weight is 0 */
    const __m256i first = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i*)from));
    const __m256i second = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i*)next));
    const __m256i a = _mm256_unpacklo_epi16(first, second);
    const __m256i b = _mm256_unpackhi_epi16(first, second);
    const __m256i low = _mm256_set1_epi32(weights[0]), high = _mm256_set1_epi32(weights[1]);
    low_a = _mm256_add_epi32(low_a, _mm256_madd_epi16(a, low));
    low_b = _mm256_add_epi32(low_b, _mm256_madd_epi16(b, low));
    high_a = _mm256_add_epi32(high_a, _mm256_madd_epi16(a, high));
    high_b = _mm256_add_epi32(high_b, _mm256_madd_epi16(b, high));
    from += 2 * stride;
  }
  const __m256i a = levels(whole_sums(low_a, high_a)), b = levels(whole_sums(low_b, high_b));
  const __m256i words = _mm256_packs_epi32(a, b);
  const __m256i bytes = _mm256_packus_epi16(words, words);
  return _mm256_castsi256_si128(_mm256_permute4x64_epi64(bytes, 0x08));
}

/* One output row of `num_bytes` (at least 16) from `num_taps` rows, `stride` bytes apart. */
PYVLM_AVX2 static void blend_column(const uint8_t* from, ptrdiff_t stride, int num_taps,
                                    const int32_t* weights, uint8_t* out, ptrdiff_t num_bytes) {
  for (ptrdiff_t at = 0; at < num_bytes; at += 16) {
    if (at + 16 > num_bytes) at = num_bytes - 16; /* the last ones are made twice */
    _mm_storeu_si128((__m128i*)(out + at), bytes_in_column(from + at, stride, num_taps, weights));
  }
}

#else

static int has_avx2(void) { return 0; }

/* Never reached: callers ask has_avx2 first. */
static void blend_rows(const uint8_t* const* rows, uint8_t* const* out, int width,
                       const int* starts, const int* num_groups, const int16_t* weights,
                       ptrdiff_t weights_step) {
  abort();
}

static void blend_column(const uint8_t* from, ptrdiff_t stride, int num_taps,
                         const int32_t* weights, uint8_t* out, ptrdiff_t num_bytes) {
  abort();
}

#endif
