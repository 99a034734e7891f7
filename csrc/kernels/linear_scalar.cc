// Portable matrix product: one panel at a time, widened once and applied to every row.
#include "csrc/kernels/linear_scalar.h"

#include <algorithm>

#include "csrc/kernels/kernels_scalar.h"
#include "csrc/kernels/math_scalar.h"
#include "csrc/kernels/params.h"
#include "csrc/kernels/scratch.h"

namespace pyvlm::kernels::scalar {
namespace {

// acc[r] = sum over k of x[k] * panel[k][r], in the order of k.
void PanelProduct(const float* x, const float* panel, size_t in_size, float* acc) {
  std::fill_n(acc, kPanelRows, 0.0f);
  for (size_t k = 0; k < in_size; ++k, panel += kPanelRows) {
    for (size_t r = 0; r < kPanelRows; ++r) acc[r] += x[k] * panel[r];
  }
}

// The rows of x, normalised if asked for; null if memory is exhausted.
template <typename W>
const float* PrepareRows(const LinearParams<W>& p) {
  if ((p.flags & kRmsNorm) == 0) return p.x.data();
  float* rows = ThreadScratch(ScratchSlot::activations, p.num_rows * p.in_size);
  for (size_t m = 0; rows != nullptr && m < p.num_rows; ++m) {
    RmsNormRow(p.x.data() + m * p.in_size, p.norm_weight.data(), p.in_size,
               ScalarFromBits(p.eps_bits), rows + m * p.in_size);
  }
  return rows;
}

template <typename W>
int Run(const LinearParams<W>& p) {
  if (!HasValidFlags(p)) return kInvalidArgument;
  const Range panels = Split(NumPanels(p), p.share);
  if (panels.begin == panels.end || p.num_rows == 0) return kOk;
  const float* rows = PrepareRows(p);
  float* panel = ThreadScratch(ScratchSlot::panel, p.in_size * kPanelRows);
  if (rows == nullptr || panel == nullptr) return kOutOfMemory;
  for (size_t n = panels.begin; n < panels.end; ++n) {
    const W* source = p.matrix.data() + n * p.in_size * kPanelRows;
    for (size_t i = 0; i < p.in_size * kPanelRows; ++i) panel[i] = ToFloat(source[i]);
    for (size_t m = 0; m < p.num_rows; ++m) {
      float acc[kPanelRows];
      PanelProduct(rows + m * p.in_size, panel, p.in_size, acc);
      StorePanel(p, acc, m, n);
    }
  }
  return kOk;
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

}  // namespace pyvlm::kernels::scalar
