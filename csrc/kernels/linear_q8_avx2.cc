// Linear with 8-bit weights for a few rows (decode): weights stream from memory once.
#include "csrc/kernels/kernels_avx2.h"
#include "csrc/kernels/linear_avx2.h"
#include "csrc/kernels/quantize_avx2.h"
#include "csrc/kernels/tile_q8_avx2.h"

namespace pyvlm::kernels::avx2 {
namespace {

PYVLM_INLINE void PrefetchBlock(const int8_t* block) {
  constexpr size_t kAheadBytes = 4 * kQ8BlockBytes;
  for (size_t i = 0; i < kQ8BlockBytes; i += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(block) + kAheadBytes + i, _MM_HINT_T0);
  }
}

// acc[M][16] = products of M rows with one panel, without the scales of the rows. More than six
// rows take two tiles of the same block.
template <int M>
PYVLM_INLINE void PanelProducts(const QuantizedRows& rows, const int8_t* panel, float* acc) {
  constexpr int kFirst = M > 6 ? 4 : M;
  for (size_t i = 0; i < M * kPanelRows; i += 8) Store8(_mm256_setzero_ps(), acc + i);
  const int16_t* x = rows.values;
  for (size_t k = 0; k < rows.padded; k += kQ8Inputs, x += kQ8Inputs, panel += kQ8BlockBytes) {
    PrefetchBlock(panel);
    BlockTile<kFirst>(PackedBlock{panel}, x, rows.padded, acc);
    if constexpr (M > kFirst) {
      BlockTile<M - kFirst>(PackedBlock{panel}, x + kFirst * rows.padded, rows.padded,
                            acc + kFirst * kPanelRows);
    }
  }
}

template <int M>
void RunPanels(const LinearParams<int8_t>& p, const QuantizedRows& rows, Range panels) {
  const Epilogue epilogue = EpilogueOf(p);
  alignas(64) float acc[M * kPanelRows];
  for (size_t n = panels.begin; n < panels.end; ++n) {
    PanelProducts<M>(rows, p.matrix.data() + n * Q8PanelBytes(p.in_size), acc);
    for (size_t m = 0; m < M; ++m) {
      FinishScaled(epilogue, acc + m * kPanelRows, rows.scales[m], m, n);
    }
  }
}

int RunFewRows(const LinearParams<int8_t>& p) {
  using Form = void (*)(const LinearParams<int8_t>&, const QuantizedRows&, Range);
  static constexpr Form kForms[kMaxSmallRows] = {RunPanels<1>, RunPanels<2>, RunPanels<3>,
                                                 RunPanels<4>, RunPanels<5>, RunPanels<6>,
                                                 RunPanels<7>, RunPanels<8>};
  const Range panels = Split(NumPanels(p), p.share);
  if (panels.begin == panels.end) return kOk;
  QuantizedRows rows;
  if (!rows.Allocate(p.num_rows, p.in_size)) return kOutOfMemory;
  rows.Fill(p, 0, p.num_rows);
  kForms[p.num_rows - 1](p, rows, panels);
  return kOk;
}

int Run(const LinearParams<int8_t>& p) {
  if ((p.flags & kSwiGlu) != 0 && (p.flags & (kBias | kGelu)) != 0) return kInvalidArgument;
  if (p.num_rows == 0) return kOk;
  return p.num_rows <= kMaxSmallRows ? RunFewRows(p) : LinearQ8Blocked(p);
}

}  // namespace

int LinearQ8(void* params, void*, void*) {
  return Run(*static_cast<const LinearParams<int8_t>*>(params));
}

int LinearRowsQ8(void* params, void*, void*) {
  return Run(WithoutRowOffsets(*static_cast<const LinearRowsParams<int8_t>*>(params)));
}

}  // namespace pyvlm::kernels::avx2
