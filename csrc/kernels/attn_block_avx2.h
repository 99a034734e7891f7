// Attention of a block of query rows over chunks of 64 keys, for prefill and vision.
//
// Queries are packed for the register tile; a chunk's keys are transposed and its values laid out
// in panels, both in f32; then scores = Q K^T, online softmax, sums += P V. Chunks start at
// multiples of 64 keys whatever the block, and a masked score weighs exactly 0, so a row's bits do
// not depend on the block that it is in.
#ifndef PYVLM_KERNELS_ATTN_BLOCK_AVX2_H_
#define PYVLM_KERNELS_ATTN_BLOCK_AVX2_H_

#include "csrc/kernels/scratch.h"
#include "csrc/kernels/tile_avx2.h"

namespace pyvlm::kernels::avx2 {

inline constexpr size_t kChunkKeys = 64;
inline constexpr size_t kBlockRows = 96;  // what a caller should aim at

struct AttnBlock {
  size_t num_rows, head_dim;
  float* query;    // [rows / 6][D][6]
  float* keys;     // [64 / 16][D][16]
  float* values;   // [D' / 16][64][16], D' = D rounded up to 16
  float* scores;   // [rows][64]
  float* sums;     // [rows][D']
  float* largest;  // [rows]
  float* weight;   // [rows]

  size_t padded_rows() const { return RoundUp(num_rows, kTileRows); }
  size_t padded_dim() const { return RoundUp(head_dim, kPanelRows); }
};

// Lays the block out in the thread's scratch; false if memory is exhausted.
PYVLM_INLINE bool AllocateBlock(size_t max_rows, size_t head_dim, AttnBlock* block) {
  const size_t rows = RoundUp(max_rows, kTileRows), dim = RoundUp(head_dim, kPanelRows);
  const size_t total = rows * (2 * dim + kChunkKeys + 2) + 2 * kChunkKeys * dim;
  float* next = ThreadScratch(ScratchSlot::attention, total);
  if (next == nullptr) return false;
  const auto take = [&next](size_t count) {
    float* taken = next;
    next += count;
    return taken;
  };
  block->head_dim = head_dim;
  block->keys = take(kChunkKeys * dim);
  block->values = take(kChunkKeys * dim);
  block->query = take(rows * dim);
  block->sums = take(rows * dim);
  block->scores = take(rows * kChunkKeys);
  block->largest = take(rows);
  block->weight = take(rows);
  return true;
}

// Where the 8 lanes of value row t from d on lie in the panels.
PYVLM_INLINE float* ValueLanes(const AttnBlock& block, size_t t, size_t d) {
  return block.values + d / kPanelRows * kPanelRows * kChunkKeys + t * kPanelRows + d % kPanelRows;
}

// Clears a block for new queries, and the lanes that pad the values to whole panels.
PYVLM_INLINE void StartBlock(AttnBlock* block, size_t num_rows) {
  block->num_rows = num_rows;
  const size_t rows = block->padded_rows();
  for (size_t i = 0; i < rows * block->head_dim; ++i) block->query[i] = 0.0f;
  for (size_t i = 0; i < rows * block->padded_dim(); ++i) block->sums[i] = 0.0f;
  for (size_t t = 0; t < kChunkKeys && block->head_dim % kPanelRows != 0; ++t) {
    Store8(_mm256_setzero_ps(), ValueLanes(*block, t, block->head_dim));
  }
  for (size_t i = 0; i < rows; ++i) block->largest[i] = -__builtin_inff();
  for (size_t i = 0; i < rows; ++i) block->weight[i] = 0.0f;
}

PYVLM_INLINE void SetQuery(AttnBlock* block, size_t row, const float* query, float scale) {
  float* lane = block->query + row / kTileRows * kTileRows * block->head_dim + row % kTileRows;
  for (size_t d = 0; d < block->head_dim; ++d) lane[d * kTileRows] = query[d] * scale;
}

template <typename KeyRow>
PYVLM_INLINE __m256 KeyLanes(const KeyRow& key_row, size_t t, size_t count, size_t d) {
  return t < count ? Load8(key_row(t) + d) : _mm256_setzero_ps();
}

// key_row(t) is row t of the chunk; rows from `count` on become zero.
template <typename KeyRow>
PYVLM_INLINE void PackKeys(const AttnBlock& block, const KeyRow& key_row, size_t count) {
  for (size_t t = 0; t < kChunkKeys; t += 8) {
    float* panel = block.keys + t / kPanelRows * kPanelRows * block.head_dim + t % kPanelRows;
    for (size_t d = 0; d < block.head_dim; d += 8) {
      __m256 r0 = KeyLanes(key_row, t, count, d), r1 = KeyLanes(key_row, t + 1, count, d);
      __m256 r2 = KeyLanes(key_row, t + 2, count, d), r3 = KeyLanes(key_row, t + 3, count, d);
      __m256 r4 = KeyLanes(key_row, t + 4, count, d), r5 = KeyLanes(key_row, t + 5, count, d);
      __m256 r6 = KeyLanes(key_row, t + 6, count, d), r7 = KeyLanes(key_row, t + 7, count, d);
      Transpose(r0, r1, r2, r3, r4, r5, r6, r7);
      float* out = panel + d * kPanelRows;
      Store8(r0, out), Store8(r1, out + 16), Store8(r2, out + 32), Store8(r3, out + 48);
      Store8(r4, out + 64), Store8(r5, out + 80), Store8(r6, out + 96), Store8(r7, out + 112);
    }
  }
}

template <typename ValueRow>
PYVLM_INLINE void PackValues(const AttnBlock& block, const ValueRow& value_row, size_t count) {
  for (size_t d = 0; d < block.head_dim; d += 8) {
    float* out = ValueLanes(block, 0, d);
    for (size_t t = 0; t < count; ++t) Store8(Load8(value_row(t) + d), out + t * kPanelRows);
    for (size_t t = count; t < kChunkKeys; ++t) Store8(_mm256_setzero_ps(), out + t * kPanelRows);
  }
}

// Rows [first, rows) only: those before see no key of this chunk.
PYVLM_INLINE void ComputeScores(const AttnBlock& block, size_t first) {
  for (size_t row = first; row < block.padded_rows(); row += kTileRows) {
    for (size_t t = 0; t < kChunkKeys; t += kPanelRows) {
      Tile<6, 2, Rows::packed, false>(block.query + row * block.head_dim, 1,
                                      block.keys + t * block.head_dim, 0, block.head_dim, false,
                                      block.scores + row * kChunkKeys + t, kChunkKeys, 0);
    }
  }
}

// Largest score of one row so far; scales what was summed before if it grew. Keys from `limit` on
// are masked.
PYVLM_INLINE void UpdateLargest(const AttnBlock& block, size_t row, size_t limit) {
  float* scores = block.scores + row * kChunkKeys;
  for (size_t t = limit; t < kChunkKeys; ++t) scores[t] = -__builtin_inff();
  const float before = block.largest[row];
  __m256 even = _mm256_set1_ps(before), odd = even;
  for (size_t t = 0; t < kChunkKeys; t += 16) {
    even = _mm256_max_ps(even, Load8(scores + t));
    odd = _mm256_max_ps(odd, Load8(scores + t + 8));
  }
  const float now = Max(_mm256_max_ps(even, odd));
  if (now == before) return;  // not taken for NaN, which must spread
  const __m256 rescale = Exp(_mm256_set1_ps(before - now));
  float* sums = block.sums + row * block.padded_dim();
  for (size_t d = 0; d < block.padded_dim(); d += 8) {
    Store8(_mm256_mul_ps(rescale, Load8(sums + d)), sums + d);
  }
  block.weight[row] *= _mm256_cvtss_f32(rescale);
  block.largest[row] = now;
}

// Scores of one row to weights relative to its largest score.
PYVLM_INLINE void WeighScores(const AttnBlock& block, size_t row) {
  float* scores = block.scores + row * kChunkKeys;
  const __m256 shift = _mm256_set1_ps(block.largest[row]);
  __m256 even = _mm256_setzero_ps(), odd = even;
  for (size_t t = 0; t < kChunkKeys; t += 16) {
    const __m256 a = Exp(_mm256_sub_ps(Load8(scores + t), shift));
    const __m256 b = Exp(_mm256_sub_ps(Load8(scores + t + 8), shift));
    even = _mm256_add_ps(even, a);
    odd = _mm256_add_ps(odd, b);
    Store8(a, scores + t);
    Store8(b, scores + t + 8);
  }
  block.weight[row] += Sum(_mm256_add_ps(even, odd));
}

PYVLM_INLINE void AddValues(const AttnBlock& block, size_t first) {
  const size_t dim = block.padded_dim();
  for (size_t row = first; row < block.padded_rows(); row += kTileRows) {
    for (size_t d = 0; d < dim; d += kPanelRows) {
      Tile<6, 2, Rows::strided, false>(block.scores + row * kChunkKeys, kChunkKeys,
                                       block.values + d * kChunkKeys, 0, kChunkKeys, true,
                                       block.sums + row * dim + d, dim, 0);
    }
  }
}

// One chunk of `count` keys. limit(row) is how many of them the row sees; rows before `first` (a
// multiple of kTileRows) see none.
template <typename KeyRow, typename ValueRow, typename Limit>
PYVLM_INLINE void RunChunk(const AttnBlock& block, const KeyRow& key_row, const ValueRow& value_row,
                           size_t count, size_t first, const Limit& limit) {
  PackKeys(block, key_row, count);
  PackValues(block, value_row, count);
  ComputeScores(block, first);
  // Two passes: rows of the second are independent of any reduction, so they overlap in the CPU.
  const size_t rows = block.padded_rows();
  for (size_t row = first; row < rows; ++row) UpdateLargest(block, row, limit(row));
  for (size_t row = first; row < rows; ++row) WeighScores(block, row);
  AddValues(block, first);
}

PYVLM_INLINE void StoreBlockRow(const AttnBlock& block, size_t row, float* out) {
  const __m256 inverse = _mm256_set1_ps(1.0f / block.weight[row]);
  const float* sums = block.sums + row * block.padded_dim();
  for (size_t d = 0; d < block.head_dim; d += 8) {
    Store8(_mm256_mul_ps(inverse, Load8(sums + d)), out + d);
  }
}

}  // namespace pyvlm::kernels::avx2

#endif  // PYVLM_KERNELS_ATTN_BLOCK_AVX2_H_
