// What the two forms of linear share: the last steps from accumulators to y.
#ifndef PYVLM_KERNELS_LINEAR_AVX2_H_
#define PYVLM_KERNELS_LINEAR_AVX2_H_

#include "csrc/kernels/params.h"
#include "csrc/kernels/simd_avx2.h"

namespace pyvlm::kernels::avx2 {

inline constexpr size_t kMaxSmallRows = 8;

struct Epilogue {
  size_t flags, y_width;
  const float *bias, *residual;
  float* y;
};

template <typename W>
static inline Epilogue EpilogueOf(const LinearParams<W>& p) {
  const size_t y_width = (p.flags & kSwiGlu) != 0 ? p.out_size / 2 : p.out_size;
  return {p.flags, y_width, p.bias.data(), p.residual.data(), p.y.data()};
}

template <typename W>
static inline size_t NumPanels(const LinearParams<W>& p) {
  return (p.flags & kSwiGlu) != 0 ? CeilDiv(p.out_size / 2, kPanelRows / 2)
                                  : CeilDiv(p.out_size, kPanelRows);
}

PYVLM_INLINE __m256 LoadOutputs(const float* p, size_t count) {
  return count == 8 ? Load8(p) : LoadFirst(p, count);
}

// Bias, gelu and residual on `count` (1..8) outputs of one row, first output `column`.
PYVLM_INLINE void FinishLanes(const Epilogue& e, __m256 value, size_t row, size_t column,
                              size_t count) {
  const size_t at = row * e.y_width + column;
  if ((e.flags & kBias) != 0) value = _mm256_add_ps(value, LoadOutputs(e.bias + column, count));
  if ((e.flags & kGelu) != 0) value = GeluTanh(value);
  if ((e.flags & kResidual) != 0) value = _mm256_add_ps(value, LoadOutputs(e.residual + at, count));
  if (count == 8) {
    Store8(value, e.y + at);
  } else {
    StoreFirst(value, e.y + at, count);  // masked stores are slow on some CPUs: tails only
  }
}

// Writes the outputs of one row and panel from its 16 products.
PYVLM_INLINE void FinishPanel(const Epilogue& e, __m256 low, __m256 high, size_t row,
                              size_t panel) {
  if ((e.flags & kSwiGlu) != 0) {
    const size_t column = panel * 8;
    FinishLanes(e, _mm256_mul_ps(Silu(low), high), row, column, Min(8, e.y_width - column));
    return;
  }
  const size_t column = panel * kPanelRows, count = Min(kPanelRows, e.y_width - column);
  FinishLanes(e, low, row, column, Min(8, count));
  if (count > 8) FinishLanes(e, high, row, column + 8, count - 8);
}

PYVLM_INLINE void Finish(const Epilogue& e, const float* acc, size_t row, size_t panel) {
  FinishPanel(e, Load8(acc), Load8(acc + 8), row, panel);
}

// The same for products that a scale of their row is still to multiply.
PYVLM_INLINE void FinishScaled(const Epilogue& e, const float* acc, float scale, size_t row,
                               size_t panel) {
  const __m256 factor = _mm256_set1_ps(scale);
  FinishPanel(e, _mm256_mul_ps(Load8(acc), factor), _mm256_mul_ps(Load8(acc + 8), factor), row,
              panel);
}

// Equal blocks of at most `limit`, rounded up to a multiple of `unit`.
static inline size_t BlockSize(size_t total, size_t limit, size_t unit) {
  return RoundUp(CeilDiv(total, CeilDiv(total, limit)), unit);
}

// Weights that are read next: each of `num_tiles` tiles of rows asks for its part, so
// that they are in cache when their turn comes.
struct Ahead {
  const char* next;
  size_t step;  // bytes a tile

  Ahead(const void* begin, size_t bytes, size_t num_tiles)
      : next(static_cast<const char*>(begin)), step(RoundUp(CeilDiv(bytes, num_tiles), 64)) {}
  void Prefetch() {
    for (size_t i = 0; i < step; i += 64) _mm_prefetch(next + i, _MM_HINT_T1);
    next += step;
  }
};

// More than a few rows; same bits as the small form.
template <typename W>
int LinearBlocked(const LinearParams<W>& p);
int LinearQ8Blocked(const LinearParams<int8_t>& p);

}  // namespace pyvlm::kernels::avx2

#endif  // PYVLM_KERNELS_LINEAR_AVX2_H_
