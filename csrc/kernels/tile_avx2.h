// The register tile of all matrix products: R rows of activations times V vectors of 8 outputs.
//
// Every output is one chain of fused multiply-adds in the order of k, starting from zero (or from
// the stored chain when a product is resumed). So its bits do not depend on the tile that computes
// it, which is what makes rows independent of batch size and work split.
//
// Accumulators are nested structs, not arrays: GCC 12 leaves arrays of vectors in memory when the
// loop around them is large, at less than half the speed.
#ifndef PYVLM_KERNELS_TILE_AVX2_H_
#define PYVLM_KERNELS_TILE_AVX2_H_

#include "csrc/kernels/params.h"
#include "csrc/kernels/simd_avx2.h"

namespace pyvlm::kernels::avx2 {

// Vector j covers half j % 2 of panel j / 2; panels are `stride` elements apart.
template <int V>
struct Lanes {
  Lanes<V - 1> rest;
  __m256 last;
};
template <>
struct Lanes<0> {};

template <int R, int V>
struct Accumulators {
  Lanes<V> row;
  Accumulators<R - 1, V> next;
};
template <int V>
struct Accumulators<0, V> {};

template <int V>
constexpr size_t LaneOffset(size_t stride) {
  return (V - 1) / 2 * stride + (V - 1) % 2 * 8;
}

template <int V, typename T>
PYVLM_INLINE void LoadLanes(Lanes<V>& lanes, const T* p, size_t stride) {
  if constexpr (V > 0) {
    LoadLanes(lanes.rest, p, stride);
    lanes.last = Load8(p + LaneOffset<V>(stride));
  }
}

template <int V>
PYVLM_INLINE void StoreLanes(const Lanes<V>& lanes, float* p, size_t stride) {
  if constexpr (V > 0) {
    StoreLanes(lanes.rest, p, stride);
    Store8(lanes.last, p + LaneOffset<V>(stride));
  }
}

template <int V>
PYVLM_INLINE void ClearLanes(Lanes<V>& lanes) {
  if constexpr (V > 0) {
    ClearLanes(lanes.rest);
    lanes.last = _mm256_setzero_ps();
  }
}

template <int V>
PYVLM_INLINE void MultiplyAdd(Lanes<V>& sum, const Lanes<V>& weights, __m256 x) {
  if constexpr (V > 0) {
    MultiplyAdd(sum.rest, weights.rest, x);
    sum.last = _mm256_fmadd_ps(x, weights.last, sum.last);
  }
}

template <int R, int V>
PYVLM_INLINE void Clear(Accumulators<R, V>& acc) {
  if constexpr (R > 0) {
    ClearLanes(acc.row);
    Clear(acc.next);
  }
}

template <int R, int V>
PYVLM_INLINE void Load(Accumulators<R, V>& acc, const float* c, size_t c_row, size_t c_panel) {
  if constexpr (R > 0) {
    LoadLanes(acc.row, c, c_panel);
    Load(acc.next, c + c_row, c_row, c_panel);
  }
}

template <int R, int V>
PYVLM_INLINE void Store(const Accumulators<R, V>& acc, float* c, size_t c_row, size_t c_panel) {
  if constexpr (R > 0) {
    StoreLanes(acc.row, c, c_panel);
    Store(acc.next, c + c_row, c_row, c_panel);
  }
}

template <int R, int V>
PYVLM_INLINE void Step(Accumulators<R, V>& acc, const Lanes<V>& weights, const float* a,
                       size_t a_row) {
  if constexpr (R > 0) {
    MultiplyAdd(acc.row, weights, _mm256_broadcast_ss(a));
    Step(acc.next, weights, a + a_row, a_row);
  }
}

template <int V, typename W>
PYVLM_INLINE void Prefetch(const W* b, size_t b_panel) {
  constexpr size_t kAheadBytes = 2048;
  if constexpr (V > 0) {
    Prefetch<V - 2>(b, b_panel);
    const char* line = reinterpret_cast<const char*>(b + (V - 2) / 2 * b_panel) + kAheadBytes;
    for (size_t i = 0; i < 4 * kPanelRows * sizeof(W); i += 64) {
      _mm_prefetch(line + i, _MM_HINT_T0);
    }
  }
}

// How a tile reads its R rows of activations.
enum class Rows {
  strided,  // element (r, k) at a[r * a_row + k]
  packed,   // element (r, k) at a[k * kTileRows + r]
};
inline constexpr size_t kTileRows = 6;

// c[r][j] (+)= sum over k of a(r, k) * b[k][j]; c rows are c_row, c and b panels c_panel and
// b_panel elements apart. `kStream`: b comes from memory, prefetch it.
template <int R, int V, Rows kRows, bool kStream, typename W>
PYVLM_INLINE void Tile(const float* a, size_t a_row, const W* b, size_t b_panel, size_t depth,
                       bool resume, float* c, size_t c_row, size_t c_panel) {
  constexpr size_t kStepA = kRows == Rows::packed ? kTileRows : 1;
  if constexpr (kRows == Rows::packed) a_row = 1;
  Accumulators<R, V> acc;
  if (resume) {
    Load(acc, c, c_row, c_panel);
  } else {
    Clear(acc);
  }
  Lanes<V> weights;
  size_t k = 0;
  for (; k + 4 <= depth; k += 4) {
    if constexpr (kStream) Prefetch<V>(b, b_panel);
#pragma GCC unroll 4
    for (size_t u = 0; u < 4; ++u, a += kStepA, b += kPanelRows) {
      LoadLanes(weights, b, b_panel);
      Step(acc, weights, a, a_row);
    }
  }
  for (; k < depth; ++k, a += kStepA, b += kPanelRows) {
    LoadLanes(weights, b, b_panel);
    Step(acc, weights, a, a_row);
  }
  Store(acc, c, c_row, c_panel);
}

}  // namespace pyvlm::kernels::avx2

#endif  // PYVLM_KERNELS_TILE_AVX2_H_
