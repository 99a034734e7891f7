#include "csrc/kernels/kernel_testing.h"

namespace pyvlm::kernels {
namespace {

double Value(uint16_t bits) {
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

void CheckAllHalves() {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const Half half{static_cast<uint16_t>(bits)};
    const float wide = ToFloat(half);
    if ((bits & 0x7c00) != 0x7c00) {
      REQUIRE(wide == Value(half.bits));
      REQUIRE(std::signbit(wide) == ((bits & 0x8000) != 0));
    } else {
      REQUIRE(std::isinf(wide) == ((bits & 0x3ff) == 0));
      REQUIRE(std::isnan(wide) == ((bits & 0x3ff) != 0));
    }
    Half back;
    FromFloat(wide, &back);
    if (!std::isnan(wide)) REQUIRE(back.bits == half.bits);
    if (std::isnan(wide)) REQUIRE(std::isnan(ToFloat(back)));
  }
}

TEST_CASE("every half widens exactly and narrows back to itself") {
  SUBCASE("with denormal floats") { CheckAllHalves(); }
  SUBCASE("without denormal floats") {
    const FlushDenormals flush;
    CheckAllHalves();
  }
}

TEST_CASE("narrowing rounds to nearest, ties to even") {
  for (uint16_t bits = 0; bits < 0x7bff; ++bits) {
    const double low = Value(bits), high = Value(static_cast<uint16_t>(bits + 1));
    const double middle = (low + high) / 2;
    Half half;
    FromFloat(static_cast<float>(middle), &half);
    REQUIRE(half.bits == (bits % 2 == 0 ? bits : bits + 1));
    FromFloat(std::nextafter(static_cast<float>(middle), 0.0f), &half);
    REQUIRE(half.bits == bits);
    FromFloat(-std::nextafter(static_cast<float>(middle), 1e9f), &half);
    REQUIRE(half.bits == ((bits + 1) | 0x8000));
  }
  Half half;
  FromFloat(65519.9f, &half);
  CHECK(half.bits == 0x7bff);
  FromFloat(65520.0f, &half);
  CHECK(half.bits == 0x7c00);
  FromFloat(-1e30f, &half);
  CHECK(half.bits == 0xfc00);
}

}  // namespace
}  // namespace pyvlm::kernels
