#include "csrc/kernels/q8.h"

#include <algorithm>
#include <cmath>

namespace pyvlm::kernels {
namespace {

constexpr float kLevels = 127.0f;  // on each side of zero

// The scale of a block, an infinity or a NaN if f16 has none. Rounding to f16 must not make it so
// small that the largest weight is cut.
Half ScaleOf(float largest) {
  Half scale;
  FromFloat(largest / kLevels, &scale);
  if (largest > (kLevels + 0.5f) * ToFloat(scale)) ++scale.bits;
  return scale;
}

// Quantises up to 32 inputs of one row into its lane of a zeroed block.
bool FillLane(const float* row, size_t count, size_t lane, int8_t* block) {
  uint32_t largest = 0;
  for (size_t k = 0; k < count; ++k) {
    largest = std::max(largest, BitsFromFloat(row[k]) & 0x7fffffffu);
  }
  const Half half = ScaleOf(FloatFromBits(largest));
  if (half.bits >= 0x7c00u) return false;
  std::memcpy(block + lane * sizeof half, &half, sizeof half);
  const float scale = ToFloat(half);
  for (size_t k = 0; scale > 0.0f && k < count; ++k) {
    const float rounded = std::nearbyint(row[k] / scale);
    block[Q8Offset(lane, k)] = static_cast<int8_t>(std::clamp(rounded, -kLevels, kLevels));
  }
  return true;
}

// Fills `num_lanes` lanes from `first_lane` on in all blocks of a panel.
bool FillLanes(const float* rows, size_t num_lanes, size_t width, size_t first_lane,
               int8_t* panel) {
  for (size_t r = 0; r < num_lanes; ++r, rows += width) {
    int8_t* block = panel;
    for (size_t k = 0; k < width; k += kQ8Inputs, block += kQ8BlockBytes) {
      if (!FillLane(rows + k, std::min(kQ8Inputs, width - k), first_lane + r, block)) return false;
    }
  }
  return true;
}

}  // namespace

size_t Q8Bytes(size_t num_rows, size_t width) {
  return (num_rows + kPanelRows - 1) / kPanelRows * Q8PanelBytes(width);
}

size_t Q8GateUpBytes(size_t num_rows, size_t width) { return Q8Bytes(2 * num_rows, width); }

bool PackQ8(const float* matrix, size_t num_rows, size_t width, int8_t* out) {
  std::fill_n(out, Q8Bytes(num_rows, width), int8_t{0});
  for (size_t n = 0; n < num_rows; n += kPanelRows, out += Q8PanelBytes(width)) {
    const size_t lanes = std::min(kPanelRows, num_rows - n);
    if (!FillLanes(matrix + n * width, lanes, width, 0, out)) return false;
  }
  return true;
}

bool PackGateUpQ8(const float* gate, const float* up, size_t num_rows, size_t width, int8_t* out) {
  constexpr size_t kHalf = kPanelRows / 2;
  std::fill_n(out, Q8GateUpBytes(num_rows, width), int8_t{0});
  for (size_t n = 0; n < num_rows; n += kHalf, out += Q8PanelBytes(width)) {
    const size_t lanes = std::min(kHalf, num_rows - n);
    if (!FillLanes(gate + n * width, lanes, width, 0, out)) return false;
    if (!FillLanes(up + n * width, lanes, width, kHalf, out)) return false;
  }
  return true;
}

}  // namespace pyvlm::kernels
