#include "csrc/kernels/pack.h"

#include "csrc/kernels/params.h"

namespace pyvlm::kernels {
namespace {

template <typename From, typename To>
void Convert(From value, To* out) {
  FromFloat(ToFloat(value), out);
}

// Copies one source row into one lane of a panel.
template <typename From, typename To>
void FillLane(const From* row, size_t width, To* lane) {
  for (size_t k = 0; k < width; ++k) Convert(row[k], lane + k * kPanelRows);
}

template <typename To>
void ClearLane(size_t width, To* lane) {
  for (size_t k = 0; k < width; ++k) lane[k * kPanelRows] = To{};
}

template <typename From, typename To>
void FillOrClear(const From* matrix, size_t row, size_t num_rows, size_t width, To* lane) {
  if (row < num_rows) {
    FillLane(matrix + row * width, width, lane);
  } else {
    ClearLane(width, lane);
  }
}

}  // namespace

size_t PanelElements(size_t num_rows, size_t width) {
  return (num_rows + kPanelRows - 1) / kPanelRows * kPanelRows * width;
}

size_t GateUpPanelElements(size_t num_rows, size_t width) {
  return (num_rows + kPanelRows / 2 - 1) / (kPanelRows / 2) * kPanelRows * width;
}

template <typename From, typename To>
void PackPanels(const From* matrix, size_t num_rows, size_t width, To* out) {
  for (size_t first = 0; first < num_rows; first += kPanelRows, out += kPanelRows * width) {
    for (size_t r = 0; r < kPanelRows; ++r) {
      FillOrClear(matrix, first + r, num_rows, width, out + r);
    }
  }
}

template <typename From, typename To>
void PackGateUp(const From* gate, const From* up, size_t num_rows, size_t width, To* out) {
  constexpr size_t kHalf = kPanelRows / 2;
  for (size_t first = 0; first < num_rows; first += kHalf, out += kPanelRows * width) {
    for (size_t r = 0; r < kHalf; ++r) {
      FillOrClear(gate, first + r, num_rows, width, out + r);
      FillOrClear(up, first + r, num_rows, width, out + kHalf + r);
    }
  }
}

template void PackPanels(const float*, size_t, size_t, float*);
template void PackPanels(const float*, size_t, size_t, Half*);
template void PackPanels(const Half*, size_t, size_t, Half*);
template void PackGateUp(const float*, const float*, size_t, size_t, float*);
template void PackGateUp(const float*, const float*, size_t, size_t, Half*);
template void PackGateUp(const Half*, const Half*, size_t, size_t, Half*);

}  // namespace pyvlm::kernels
