// The register tile of the products with 8-bit weights: R rows of int16 activations times 16 lanes.
//
// A step multiplies a pair of inputs: weights widened to int16, the pair of activations broadcast.
// Sums of a block are exact integers, so no tile or order changes the bits. The sums are nested
// structs for the reason given in tile_avx2.h.
#ifndef PYVLM_KERNELS_TILE_Q8_AVX2_H_
#define PYVLM_KERNELS_TILE_Q8_AVX2_H_

#include "csrc/kernels/q8.h"
#include "csrc/kernels/simd_avx2.h"

namespace pyvlm::kernels::avx2 {

inline constexpr size_t kQ8Pairs = kQ8Inputs / 2;
inline constexpr size_t kQ8TileRows = 6;

template <int R>
struct BlockSums {
  BlockSums<R - 1> rest;
  __m256i low, high;
};
template <>
struct BlockSums<0> {};

PYVLM_INLINE __m256i BroadcastPair(const int16_t* x) {
  int32_t pair;
  std::memcpy(&pair, x, sizeof pair);
  return _mm256_set1_epi32(pair);
}

template <int R>
PYVLM_INLINE void ClearSums(BlockSums<R>& sums) {
  if constexpr (R > 0) {
    ClearSums(sums.rest);
    sums.low = sums.high = _mm256_setzero_si256();
  }
}

// Row R - 1 of x comes last.
template <int R>
PYVLM_INLINE void AddPair(BlockSums<R>& sums, __m256i low, __m256i high, const int16_t* x,
                          size_t x_row) {
  if constexpr (R > 0) {
    AddPair(sums.rest, low, high, x, x_row);
    const __m256i pair = BroadcastPair(x + (R - 1) * x_row);
    sums.low = _mm256_add_epi32(sums.low, _mm256_madd_epi16(low, pair));
    sums.high = _mm256_add_epi32(sums.high, _mm256_madd_epi16(high, pair));
    // Ends the row here: GCC would start all rows at once and run out of registers.
    asm volatile("" : "+x"(sums.low), "+x"(sums.high));
  }
}

template <int R>
PYVLM_INLINE void AddScaled(const BlockSums<R>& sums, __m256 low, __m256 high, float* acc) {
  if constexpr (R > 0) {
    AddScaled(sums.rest, low, high, acc);
    float* row = acc + (R - 1) * kPanelRows;
    Store8(_mm256_fmadd_ps(_mm256_cvtepi32_ps(sums.low), low, Load8(row)), row);
    Store8(_mm256_fmadd_ps(_mm256_cvtepi32_ps(sums.high), high, Load8(row + 8)), row + 8);
  }
}

// A block as it is stored: f16 scales, int8 weights.
struct PackedBlock {
  static constexpr size_t kBytes = kQ8BlockBytes;
  const int8_t* at;
  __m256 scales(size_t half) const {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at + half * 16)));
  }
  __m256i weights(size_t pair, size_t half) const {
    const int8_t* p = at + kQ8ScaleBytes + pair * 32 + half * 16;
    return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
};

// A block in scratch, aligned: f32 scales, int16 weights.
struct WideBlock {
  static constexpr size_t kBytes = 4 * kPanelRows + 2 * kQ8Inputs * kPanelRows;
  const int8_t* at;
  __m256 scales(size_t half) const {
    return _mm256_load_ps(reinterpret_cast<const float*>(at + half * 32));
  }
  __m256i weights(size_t pair, size_t half) const {
    const int8_t* p = at + 4 * kPanelRows + pair * 64 + half * 32;
    return _mm256_load_si256(reinterpret_cast<const __m256i*>(p));
  }
};

PYVLM_INLINE void WidenBlock(PackedBlock block, int8_t* out) {
  for (size_t half = 0; half < 2; ++half) {
    _mm256_store_ps(reinterpret_cast<float*>(out + half * 32), block.scales(half));
  }
  out += 4 * kPanelRows;
  for (size_t i = 0; i < 2 * kQ8Pairs; ++i, out += 32) {
    _mm256_store_si256(reinterpret_cast<__m256i*>(out), block.weights(i / 2, i % 2));
  }
}

// N pairs, written out: GCC unrolls a loop of pairs with a prologue that costs registers.
template <int N, int R, typename Block>
PYVLM_INLINE void AddPairs(BlockSums<R>& sums, Block block, size_t pair, const int16_t* x,
                           size_t x_row) {
  if constexpr (N > 0) {
    AddPair(sums, block.weights(pair, 0), block.weights(pair, 1), x + 2 * pair, x_row);
    AddPairs<N - 1>(sums, block, pair + 1, x, x_row);
  }
}

// acc[r] += products of row r of x with one block; rows of acc are 16 floats.
template <int R, typename Block>
PYVLM_INLINE void BlockTile(Block block, const int16_t* x, size_t x_row, float* acc) {
  BlockSums<R> sums;
  ClearSums(sums);
  constexpr int kStep = R > 5 ? 1 : 4;  // six rows leave no register to unroll with
  for (size_t pair = 0; pair < kQ8Pairs; pair += kStep) {
    AddPairs<kStep>(sums, block, pair, x, x_row);
  }
  // The integer sums need the registers: acc must stay in memory between blocks.
  if constexpr (R > 3) asm volatile("" : "+r"(acc) : : "memory");
  AddScaled(sums, block.scales(0), block.scales(1), acc);
}

}  // namespace pyvlm::kernels::avx2

#endif  // PYVLM_KERNELS_TILE_Q8_AVX2_H_
