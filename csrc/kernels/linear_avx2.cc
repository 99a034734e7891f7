// Linear for a few rows (decode): weights stream from memory once, straight into registers.
#include "csrc/kernels/linear_avx2.h"

#include "csrc/kernels/kernels_avx2.h"
#include "csrc/kernels/norm_avx2.h"
#include "csrc/kernels/scratch.h"
#include "csrc/kernels/tile_avx2.h"

namespace pyvlm::kernels::avx2 {
namespace {

// Products of M rows with V / 2 panels; acc is [panel][M][16].
template <int M, int V, typename W>
PYVLM_INLINE void Products(const float* x, const W* panel, size_t in_size, float* acc) {
  Tile<M, V, Rows::strided, true>(x, in_size, panel, in_size * kPanelRows, in_size, false, acc,
                                  kPanelRows, M * kPanelRows);
}

// More than five rows take two tiles (six rows of widened weights do not fit the registers); blocks
// of k keep the shared weights in the first cache.
template <int M, typename W>
PYVLM_INLINE void TwoTileProducts(const float* x, const W* panel, size_t in_size, float* acc) {
  constexpr size_t kBlock = 96;
  for (size_t k = 0; k < in_size; k += kBlock) {
    const size_t depth = Min(kBlock, in_size - k);
    const W* block = panel + k * kPanelRows;
    Tile<4, 2, Rows::strided, true>(x + k, in_size, block, 0, depth, k > 0, acc, kPanelRows, 0);
    Tile<M - 4, 2, Rows::strided, false>(x + 4 * in_size + k, in_size, block, 0, depth, k > 0,
                                         acc + 4 * kPanelRows, kPanelRows, 0);
  }
}

template <int M, int V, typename W>
void RunPanels(const LinearParams<W>& p, const float* x, Range panels) {
  const Epilogue epilogue = EpilogueOf(p);
  alignas(64) float acc[M * V * 8];
  size_t n = panels.begin;
  for (; n + V / 2 <= panels.end; n += V / 2) {
    const W* panel = p.matrix.data() + n * p.in_size * kPanelRows;
    if constexpr (M > 5) {
      TwoTileProducts<M>(x, panel, p.in_size, acc);
    } else {
      Products<M, V>(x, panel, p.in_size, acc);
    }
    for (size_t i = 0; i < M * V / 2; ++i) Finish(epilogue, acc + i * 16, i % M, n + i / M);
  }
  if constexpr (V > 2) {
    if (n < panels.end) RunPanels<M, 2>(p, x, Range{n, panels.end});
  }
}

template <typename W>
void RunRows(const LinearParams<W>& p, const float* x, Range panels) {
  switch (p.num_rows) {
    case 1:
      return RunPanels<1, 4>(p, x, panels);
    case 2:
      return RunPanels<2, 4>(p, x, panels);
    case 3:
      return RunPanels<3, 2>(p, x, panels);
    case 4:
      return RunPanels<4, 2>(p, x, panels);
    case 5:
      return RunPanels<5, 2>(p, x, panels);
    case 6:
      return RunPanels<6, 2>(p, x, panels);
    case 7:
      return RunPanels<7, 2>(p, x, panels);
    default:
      return RunPanels<8, 2>(p, x, panels);
  }
}

template <typename W>
int RunSmall(const LinearParams<W>& p) {
  const Range panels = Split(NumPanels(p), p.share);
  if (panels.begin == panels.end) return kOk;
  const float* x = p.x.data();
  if ((p.flags & kRmsNorm) != 0) {
    const float eps = FloatFromBits(static_cast<uint32_t>(p.eps_bits));
    float* rows = ThreadScratch(ScratchSlot::activations, p.num_rows * p.in_size);
    if (rows == nullptr) return kOutOfMemory;
    for (size_t m = 0; m < p.num_rows; ++m) {
      RmsNormRow(x + m * p.in_size, p.norm_weight.data(), p.in_size, eps, rows + m * p.in_size);
    }
    x = rows;
  }
  RunRows(p, x, panels);
  return kOk;
}

template <typename W>
int Run(const LinearParams<W>& p) {
  if ((p.flags & kSwiGlu) != 0 && (p.flags & (kBias | kGelu)) != 0) return kInvalidArgument;
  if (p.num_rows == 0) return kOk;
  return p.num_rows <= kMaxSmallRows ? RunSmall(p) : LinearBlocked(p);
}

}  // namespace

template <typename W>
int Linear(void* params, void*, void*) {
  return Run(*static_cast<const LinearParams<W>*>(params));
}
template int Linear<Half>(void*, void*, void*);
template int Linear<float>(void*, void*, void*);

template <typename W>
int LinearRows(void* params, void*, void*) {
  return Run(WithoutRowOffsets(*static_cast<const LinearRowsParams<W>*>(params)));
}
template int LinearRows<Half>(void*, void*, void*);
template int LinearRows<float>(void*, void*, void*);

}  // namespace pyvlm::kernels::avx2
