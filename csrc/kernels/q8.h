// Weights of 8 bits: the physical layout and the arithmetic that all q8 kernels share.
//
// Panels: a matrix [N, K] becomes [ceil(N/16)][ceil(K/32)] blocks of 544 bytes. A block holds 16
// rows by 32 inputs: 16 scales (f16, one per row, little endian), then [16 pairs][16 rows][2]
// int8; element (n, k) is q * scale. Gate/up panels order their 16 lanes as in pack.h. Rows past N
// and inputs past K are zero, scales included.
//
// scale = f16(largest magnitude of the row's 32 inputs / 127), or the next larger f16 where that is
// less than largest / 127.5 (tiny scales have few bits); q = w / scale rounded to nearest even and
// clipped to +-127. So no weight is off by more than half its scale. Zeros have the scale 0. The
// archives are written by pyvlm/emit/quantize.py, which gives the same bytes.
//
// Products: a row of x (after the norm) is quantised to int16 by one scale per row; products of a
// block are exact in int32 (32 * 127 * 32766 < 2^31), become a float and are added by fma(product,
// scale, sum) in the order of blocks; the row's scale multiplies the sum once, before the epilogue.
// So the bits of an output depend on its own row and matrix only.
#ifndef PYVLM_KERNELS_Q8_H_
#define PYVLM_KERNELS_Q8_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "csrc/kernels/half.h"
#include "csrc/kernels/params.h"

namespace pyvlm::kernels {

inline constexpr size_t kQ8Inputs = 32;
inline constexpr size_t kQ8ScaleBytes = 2 * kPanelRows;
inline constexpr size_t kQ8BlockBytes = kQ8ScaleBytes + kQ8Inputs * kPanelRows;

// The largest quantised activation. Rows that stay below the least magnitude count as zero: the
// inverse of their scale would overflow. A row with a NaN or an infinity has a NaN as its scale, so
// that every output of the row shows it.
inline constexpr float kQ8MaxActivation = 32766.0f;
inline constexpr float kQ8LeastMagnitude = 0x1p-100f;
inline constexpr uint32_t kQ8InfinityBits = 0x7f800000u;

static inline size_t Q8PaddedInputs(size_t width) {
  return (width + kQ8Inputs - 1) / kQ8Inputs * kQ8Inputs;
}
static inline size_t Q8PanelBytes(size_t width) {
  return Q8PaddedInputs(width) / kQ8Inputs * kQ8BlockBytes;
}

static inline float Q8Scale(const int8_t* block, size_t lane) {
  Half scale;
  std::memcpy(&scale, block + lane * sizeof scale, sizeof scale);
  return ToFloat(scale);
}

// Where input k (below 32) of a lane lies in its block.
static inline size_t Q8Offset(size_t lane, size_t k) {
  return kQ8ScaleBytes + (k / 2 * kPanelRows + lane) * 2 + k % 2;
}

static inline float Q8Element(const int8_t* panel, size_t lane, size_t k) {
  const int8_t* block = panel + k / kQ8Inputs * kQ8BlockBytes;
  return static_cast<float>(block[Q8Offset(lane, k % kQ8Inputs)]) * Q8Scale(block, lane);
}

size_t Q8Bytes(size_t num_rows, size_t width);
size_t Q8GateUpBytes(size_t num_rows, size_t width);

// Sources are row-major; `out` has room for the bytes above. False if a scale is beyond f16 (or a
// weight is not a number).
bool PackQ8(const float* matrix, size_t num_rows, size_t width, int8_t* out);
bool PackGateUpQ8(const float* gate, const float* up, size_t num_rows, size_t width, int8_t* out);

}  // namespace pyvlm::kernels

#endif  // PYVLM_KERNELS_Q8_H_
