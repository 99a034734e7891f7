#include "csrc/kernels/q8.h"

#include "csrc/kernels/kernel_testing.h"

namespace pyvlm::kernels {
namespace {

// The scale that the format asks of row n for the block of input k, from the definition.
Half WantedScale(const std::vector<float>& matrix, size_t width, size_t n, size_t k) {
  float largest = 0;
  for (size_t i = k / 32 * 32; i < std::min(width, k / 32 * 32 + 32); ++i) {
    largest = std::max(largest, std::abs(matrix[n * width + i]));
  }
  Half scale;
  FromFloat(largest / 127.0f, &scale);
  if (127.5 * static_cast<double>(ToFloat(scale)) < largest) ++scale.bits;
  return scale;
}

// Checks all bytes of a lane; `row` past the end means that they have to be zero.
void CheckLane(const std::vector<float>& matrix, size_t num_rows, size_t width, size_t row,
               const int8_t* panel, size_t lane) {
  for (size_t k = 0; k < (width + 31) / 32 * 32; ++k) {
    const int8_t* block = panel + k / 32 * 544;
    const bool exists = row < num_rows && k < width;
    const Half scale = row < num_rows ? WantedScale(matrix, width, row, k) : Half{0};
    CHECK(std::memcmp(block + 2 * lane, &scale, 2) == 0);
    const int q = block[32 + (k % 32 / 2 * 16 + lane) * 2 + k % 2];
    const float exact = exists ? matrix[row * width + k] / ToFloat(scale) : 0.0f;
    CHECK(q == std::clamp(std::lrint(exact), -127l, 127l));
  }
}

TEST_CASE("q8 panels hold scales, then pairs of inputs, and zeros past the ends") {
  for (const size_t rows : {1, 16, 17, 40}) {
    for (const size_t width : {1, 31, 32, 33, 100}) {
      const auto matrix = Random(1).Floats(rows * width);
      Guarded<int8_t> panels(Q8Bytes(rows, width));
      REQUIRE(PackQ8(matrix.data(), rows, width, panels.data()));
      const size_t panel_bytes = (width + 31) / 32 * 544;
      REQUIRE(panels.size() == (rows + 15) / 16 * panel_bytes);
      for (size_t n = 0; n < (rows + 15) / 16 * 16; ++n) {
        CheckLane(matrix, rows, width, n, panels.data() + n / 16 * panel_bytes, n % 16);
      }
      CHECK(panels.IsIntact());
    }
  }
}

TEST_CASE("q8 gate/up panels hold 8 gate rows, then 8 up rows") {
  for (const size_t rows : {1, 8, 13}) {
    const size_t width = 45, panel_bytes = 2 * 544;
    const auto gate = Random(2).Floats(rows * width), up = Random(3).Floats(rows * width);
    Guarded<int8_t> panels(Q8GateUpBytes(rows, width));
    REQUIRE(PackGateUpQ8(gate.data(), up.data(), rows, width, panels.data()));
    REQUIRE(panels.size() == (rows + 7) / 8 * panel_bytes);
    for (size_t n = 0; n < (rows + 7) / 8 * 8; ++n) {
      const int8_t* panel = panels.data() + n / 8 * panel_bytes;
      CheckLane(gate, rows, width, n, panel, n % 8);
      CheckLane(up, rows, width, n, panel, 8 + n % 8);
    }
    CHECK(panels.IsIntact());
  }
}

TEST_CASE("q8 rounds to even and refuses scales beyond f16") {
  std::vector<int8_t> panel(Q8Bytes(1, 32));
  std::vector<float> row(32);
  row[0] = 127.0f, row[1] = 2.5f, row[2] = 3.5f, row[3] = -127.0f;  // scale 1
  REQUIRE(PackQ8(row.data(), 1, 32, panel.data()));
  CHECK(Q8Element(panel.data(), 0, 1) == 2.0f);
  CHECK(Q8Element(panel.data(), 0, 2) == 4.0f);
  CHECK(Q8Element(panel.data(), 0, 3) == -127.0f);

  for (const float bad : {127.0f * 65520.0f, INFINITY, NAN}) {
    row.assign(32, 1.0f);
    row[31] = bad;
    CHECK_FALSE(PackQ8(row.data(), 1, 32, panel.data()));
    CHECK_FALSE(PackGateUpQ8(row.data(), row.data(), 1, 32, panel.data()));
  }
  row[31] = 127.0f * 65504.0f;
  CHECK(PackQ8(row.data(), 1, 32, panel.data()));
}

// The same numbers as in tests/unit/test_emit_quantize.py: both sides must give the same bytes.
TEST_CASE("q8 takes the next larger scale where rounding would cut the largest weight") {
  struct Case {
    float weight;
    int scale_bits, level;
  };
  std::vector<int8_t> panel(Q8Bytes(1, 32));
  for (const Case& wanted :
       {Case{190 * 0x1p-24f, 2, 95}, Case{0x1p-20f, 1, 16}, Case{0x1p-40f, 1, 0},
        Case{127.5f * 0x1p-24f, 1, 127}, Case{0.0f, 0, 0}}) {
    CAPTURE(wanted.weight);
    std::vector<float> row(32);
    row[5] = wanted.weight, row[6] = -wanted.weight;
    REQUIRE(PackQ8(row.data(), 1, 32, panel.data()));
    Half scale;
    std::memcpy(&scale, panel.data(), sizeof scale);
    CHECK(scale.bits == wanted.scale_bits);
    CHECK(panel[Q8Offset(0, 5)] == wanted.level);
    CHECK(panel[Q8Offset(0, 6)] == -wanted.level);
  }
}

TEST_CASE("q8 weights are off by half their scale at most, tiny ones too") {
  Random random(4);
  std::vector<int8_t> panel(Q8Bytes(1, 32));
  for (int round = 0; round < 300; ++round) {
    const auto row = random.Floats(32, std::ldexp(1.0f, round % 50 - 30));
    REQUIRE(PackQ8(row.data(), 1, 32, panel.data()));
    for (size_t k = 0; k < row.size(); ++k) {
      const double error = std::abs(double{Q8Element(panel.data(), 0, k)} - row[k]);
      CHECK(error <= 0.5 * (1 + 1e-6) * Q8Scale(panel.data(), 0));
    }
  }
}

}  // namespace
}  // namespace pyvlm::kernels
