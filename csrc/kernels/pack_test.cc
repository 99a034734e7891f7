#include "csrc/kernels/pack.h"

#include "csrc/kernels/kernel_testing.h"

namespace pyvlm::kernels {
namespace {

TEST_CASE("panels hold element (n, k) at (n/16, k, n%16) and zeros past the last row") {
  for (const size_t rows : {1, 15, 16, 17, 40}) {
    for (const size_t width : {1, 5, 64}) {
      const auto matrix = Random(1).Floats(rows * width);
      Guarded<float> panels(PanelElements(rows, width));
      PackPanels(matrix.data(), rows, width, panels.data());
      REQUIRE(panels.size() == (rows + 15) / 16 * 16 * width);
      for (size_t i = 0; i < panels.size(); ++i) {
        const size_t n = i / (16 * width) * 16 + i % 16, k = i / 16 % width;
        CHECK(panels[i] == (n < rows ? matrix[n * width + k] : 0.0f));
      }
      CHECK(panels.IsIntact());
    }
  }
}

TEST_CASE("gate/up panels hold 8 gate rows, then 8 up rows") {
  for (const size_t rows : {1, 8, 13, 24}) {
    const size_t width = 7;
    const auto gate = Random(2).Floats(rows * width), up = Random(3).Floats(rows * width);
    Guarded<float> panels(GateUpPanelElements(rows, width));
    PackGateUp(gate.data(), up.data(), rows, width, panels.data());
    for (size_t i = 0; i < panels.size(); ++i) {
      const size_t row = i / (16 * width) * 8 + i % 8, k = i / 16 % width;
      const auto& source = i % 16 < 8 ? gate : up;
      CHECK(panels[i] == (row < rows ? source[row * width + k] : 0.0f));
    }
    CHECK(panels.IsIntact());
  }
}

TEST_CASE("packing rounds to half and copies halves") {
  const auto matrix = Random(4).Floats(20 * 6);
  const auto halves = ConvertTo<Half>(matrix);
  Guarded<Half> rounded(PanelElements(20, 6)), copied(PanelElements(20, 6));
  PackPanels(matrix.data(), 20, 6, rounded.data());
  PackPanels(halves.data(), 20, 6, copied.data());
  CHECK(rounded.SameBits(copied));
  CHECK(rounded[3].bits == halves[3 * 6].bits);
}

}  // namespace
}  // namespace pyvlm::kernels
