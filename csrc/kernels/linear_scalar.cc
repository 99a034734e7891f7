// Portable matrix product: one panel at a time, widened once and applied to every row.
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

template <typename W>
void StoreSwiGlu(const LinearParams<W>& p, const float* acc, size_t row, size_t panel) {
  constexpr size_t kHalf = kPanelRows / 2;
  const size_t width = p.out_size / 2, first = panel * kHalf;
  float* y = p.y.data() + row * width + first;
  const float* residual = p.residual.data() + row * width + first;
  for (size_t r = 0; r < std::min(kHalf, width - first); ++r) {
    const float value = Silu(acc[r]) * acc[kHalf + r];
    y[r] = (p.flags & kResidual) != 0 ? value + residual[r] : value;
  }
}

template <typename W>
void StorePlain(const LinearParams<W>& p, const float* acc, size_t row, size_t panel) {
  const size_t first = panel * kPanelRows;
  float* y = p.y.data() + row * p.out_size + first;
  const float* residual = p.residual.data() + row * p.out_size + first;
  for (size_t r = 0; r < std::min(kPanelRows, p.out_size - first); ++r) {
    float value = acc[r];
    if ((p.flags & kBias) != 0) value += p.bias.data()[first + r];
    if ((p.flags & kGelu) != 0) value = GeluTanh(value);
    if ((p.flags & kResidual) != 0) value += residual[r];
    y[r] = value;
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
  const bool swiglu = (p.flags & kSwiGlu) != 0;
  if (swiglu && (p.flags & (kBias | kGelu)) != 0) return kInvalidArgument;
  const size_t padded = swiglu ? (p.out_size / 2 + 7) / 8 : (p.out_size + 15) / 16;
  const Range panels = Split(padded, p.share);
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
      swiglu ? StoreSwiGlu(p, acc, m, n) : StorePlain(p, acc, m, n);
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
