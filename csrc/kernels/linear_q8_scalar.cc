// Portable matrix product with 8-bit weights; see q8.h for the arithmetic.
#include <algorithm>
#include <cmath>
#include <limits>

#include "csrc/kernels/kernels_scalar.h"
#include "csrc/kernels/linear_scalar.h"
#include "csrc/kernels/q8.h"
#include "csrc/kernels/scratch.h"

namespace pyvlm::kernels::scalar {
namespace {

constexpr size_t kMaxSmallRows = 8;

// Writes `padded` values, of which those past in_size are zero, and returns the scale of the row.
float QuantizeRow(const float* x, size_t in_size, size_t padded, int16_t* out) {
  std::fill_n(out, padded, int16_t{0});
  uint32_t largest = 0;
  for (size_t k = 0; k < in_size; ++k) {
    largest = std::max(largest, BitsFromFloat(x[k]) & 0x7fffffffu);
  }
  if (largest >= kQ8InfinityBits) return std::numeric_limits<float>::quiet_NaN();
  const float magnitude = FloatFromBits(largest);
  if (magnitude < kQ8LeastMagnitude) return 0.0f;
  const float inverse = kQ8MaxActivation / magnitude;
  for (size_t k = 0; k < in_size; ++k) {
    out[k] = static_cast<int16_t>(std::nearbyint(x[k] * inverse));
  }
  return magnitude / kQ8MaxActivation;
}

// acc[r] = the products of one row and 16 lanes, without the scale of the row.
void PanelProduct(const int16_t* x, const int8_t* panel, size_t padded, float* acc) {
  std::fill_n(acc, kPanelRows, 0.0f);
  for (size_t first = 0; first < padded; first += kQ8Inputs, panel += kQ8BlockBytes) {
    for (size_t r = 0; r < kPanelRows; ++r) {
      int32_t sum = 0;
      for (size_t k = 0; k < kQ8Inputs; ++k) sum += x[first + k] * panel[Q8Offset(r, k)];
      acc[r] = std::fma(static_cast<float>(sum), Q8Scale(panel, r), acc[r]);
    }
  }
}

// One row against a range of panels; `values` and `normed` are scratch for a padded row.
void RunRow(const LinearParams<int8_t>& p, size_t row, Range panels, int16_t* values,
            float* normed) {
  const float* x = p.x.data() + row * p.in_size;
  if ((p.flags & kRmsNorm) != 0) {
    RmsNormRow(x, p.norm_weight.data(), p.in_size, ScalarFromBits(p.eps_bits), normed);
    x = normed;
  }
  const size_t padded = Q8PaddedInputs(p.in_size);
  const float scale = QuantizeRow(x, p.in_size, padded, values);
  for (size_t n = panels.begin; n < panels.end; ++n) {
    float acc[kPanelRows];
    PanelProduct(values, p.matrix.data() + n * Q8PanelBytes(p.in_size), padded, acc);
    for (float& sum : acc) sum *= scale;
    StorePanel(p, acc, row, n);
  }
}

// Few rows are shared by panels; many by rows, so that a row is quantised once.
int Run(const LinearParams<int8_t>& p) {
  if (!HasValidFlags(p)) return kInvalidArgument;
  const bool few = p.num_rows <= kMaxSmallRows;
  const Range rows = few ? Range{0, p.num_rows} : Split(p.num_rows, p.share);
  const Range panels = few ? Split(NumPanels(p), p.share) : Range{0, NumPanels(p)};
  if (rows.begin == rows.end || panels.begin == panels.end) return kOk;
  void* values = ThreadScratch(ScratchSlot::activations, Q8PaddedInputs(p.in_size));
  float* normed = ThreadScratch(ScratchSlot::panel, p.in_size);
  if (values == nullptr || normed == nullptr) return kOutOfMemory;
  for (size_t m = rows.begin; m < rows.end; ++m) {
    RunRow(p, m, panels, static_cast<int16_t*>(values), normed);
  }
  return kOk;
}

}  // namespace

int LinearQ8(void* params, void*, void*) {
  return Run(*static_cast<const LinearParams<int8_t>*>(params));
}

int LinearRowsQ8(void* params, void*, void*) {
  return Run(WithoutRowOffsets(*static_cast<const LinearRowsParams<int8_t>*>(params)));
}

}  // namespace pyvlm::kernels::scalar
