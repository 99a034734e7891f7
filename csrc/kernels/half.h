// IEEE 754 binary16 storage and its conversions, in portable C++.
// `static inline` on purpose: files of this folder are compiled for different instruction sets, and
// a function with external linkage could be merged by the linker into the copy that a plain CPU
// cannot run. The same holds for every helper in a header of csrc/kernels.
#ifndef PYVLM_KERNELS_HALF_H_
#define PYVLM_KERNELS_HALF_H_

#include <cstdint>
#include <cstring>

namespace pyvlm::kernels {

struct Half {
  uint16_t bits;
};
static_assert(sizeof(Half) == 2);

static inline float FloatFromBits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

static inline uint32_t BitsFromFloat(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

static inline float ToFloat(float value) { return value; }

// Exact for every half, denormals, infinities and NaN included, also where the FPU is set to treat
// denormal floats as zero (IREE sets its workers so): no denormal float appears on the way.
static inline float ToFloat(Half half) {
  const uint32_t sign = static_cast<uint32_t>(half.bits & 0x8000u) << 16;
  const uint32_t magnitude = half.bits & 0x7fffu;
  if (magnitude >= 0x7c00u) return FloatFromBits(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  if (magnitude >= 0x400u) return FloatFromBits(sign | ((magnitude << 13) + (112u << 23)));
  const float value = static_cast<float>(magnitude) * FloatFromBits(103u << 23);  // 2^-24
  return FloatFromBits(sign | BitsFromFloat(value));
}

static inline void FromFloat(float value, float* out) { *out = value; }

// Rounds to nearest, ties to even; beyond the range becomes infinity; NaN stays NaN.
static inline void FromFloat(float value, Half* out) {
  const uint32_t bits = BitsFromFloat(value);
  const uint32_t sign = bits >> 16 & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  uint32_t half;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00u | (magnitude >> 13 & 0x3ffu);
  } else if (magnitude >= 0x47800000u) {  // 65536 and above
    half = 0x7c00u;
  } else if (magnitude < 0x38800000u) {  // below the smallest normal half
    // Adding 0.5 places the half's last bit at the float's last bit, and the FPU rounds.
    half = BitsFromFloat(FloatFromBits(magnitude) + 0.5f) - BitsFromFloat(0.5f);
  } else {
    const uint32_t odd = magnitude >> 13 & 1u;
    half = (magnitude + 0xfffu + odd - (112u << 23)) >> 13;
  }
  out->bits = static_cast<uint16_t>(sign | half);
}

}  // namespace pyvlm::kernels

#endif  // PYVLM_KERNELS_HALF_H_
