#include "csrc/kernels/kernel_testing.h"
#include "csrc/kernels/pack.h"
#include "csrc/kernels/q8.h"

namespace pyvlm::kernels {
namespace {

constexpr size_t kCounts[] = {1, 2, 3, 8, 50};
constexpr float kEps = 1e-6f;

// Runs under every split; all must give the same bits. Returns the result.
template <typename MakeParams>
Guarded<float> RunAllSplits(KernelFn kernel, size_t size, MakeParams make_params) {
  Guarded<float> first(size);
  RunShares(kernel, make_params(&first), 1);
  CHECK(first.IsIntact());
  for (const size_t count : kCounts) {
    Guarded<float> split(size);
    RunShares(kernel, make_params(&split), count);
    CHECK(split.SameBits(first));
    CHECK(split.IsIntact());
  }
  return first;
}

TEST_CASE_TEMPLATE("embed gathers table lanes and image rows", W, Half, float) {
  constexpr size_t kVocab = 37, kRows = 9, kCount = 7;
  Random random(1);
  for (const Isa isa : SupportedIsas()) {
    for (const size_t width : {1, 8, 24, 77}) {
      const auto table = ConvertTo<W>(random.Floats(kVocab * width));
      Guarded<W> panels(PanelElements(kVocab, width));
      PackPanels(table.data(), kVocab, width, panels.data());
      const Guarded<float> images(random.Floats(3 * width));
      const Guarded<int32_t> tokens(std::vector<int32_t>{36, 0, 16, 15, 31, 32, 5, -9, 999999});
      const Guarded<int32_t> index(std::vector<int32_t>{-1, 2, -1, 0, -1, 1, -1, 77, -5});
      for (const size_t has_rows : {0, 1}) {
        const auto y = RunAllSplits(
            KernelOf(Suffixed<W>("pyvlm_embed"), isa), kRows * width, [&](Guarded<float>* out) {
              return EmbedParams<W>{
                  tokens.input(), index.input(), images.input(), panels.input(), out->buffer(),
                  kRows,          width,         kCount,         has_rows,       {}};
            });
        for (size_t i = 0; i < kCount * width; ++i) {
          const size_t row = i / width, k = i % width;
          const bool image = has_rows != 0 && index[row] >= 0;
          const float want = image ? images[static_cast<size_t>(index[row]) * width + k]
                                   : ToFloat(table[static_cast<size_t>(tokens[row]) * width + k]);
          REQUIRE(y[i] == want);
        }
        const Guarded<float> untouched(y.size());
        CHECK(std::memcmp(y.data() + kCount * width, untouched.data(), 2 * width * 4) == 0);
      }
    }
  }
}

TEST_CASE("embed gathers rows of 8-bit tables") {
  constexpr size_t kVocab = 37;
  Random random(11);
  for (const Isa isa : SupportedIsas()) {
    for (const size_t width : {1, 32, 77}) {
      const auto matrix = random.Floats(kVocab * width);
      Guarded<int8_t> table(Q8Bytes(kVocab, width));
      REQUIRE(PackQ8(matrix.data(), kVocab, width, table.data()));
      const Guarded<float> images(random.Floats(2 * width));
      const Guarded<int32_t> tokens(std::vector<int32_t>{36, 0, 16, 15});
      const Guarded<int32_t> index(std::vector<int32_t>{-1, 1, -1, -1});
      const auto y =
          RunAllSplits(KernelOf("pyvlm_embed_q8", isa), 4 * width, [&](Guarded<float>* out) {
            return EmbedParams<int8_t>{tokens.input(),
                                       index.input(),
                                       images.input(),
                                       table.input(),
                                       out->buffer(),
                                       4,
                                       width,
                                       4,
                                       1,
                                       {}};
          });
      for (size_t i = 0; i < 4 * width; ++i) {
        const size_t token = static_cast<size_t>(tokens[i / width]), k = i % width;
        if (i / width == 1) {
          CHECK(y[i] == images[width + k]);
          continue;
        }
        const int8_t* panel = table.data() + token / 16 * Q8PanelBytes(width);
        CHECK(y[i] == Q8Element(panel, token % 16, k));
        CHECK(std::abs(y[i] - matrix[token * width + k]) < 1.0f / 127);
      }
    }
  }
}

TEST_CASE("rms_norm agrees with the reference and with the prologue of linear") {
  Random random(2);
  for (const Isa isa : SupportedIsas()) {
    for (const size_t width : {1, 7, 8, 31, 64, 576, 1001}) {
      for (const float scale : {1e-4f, 1.0f, 1e4f}) {
        const size_t rows = 6;
        const Guarded<float> x(random.Floats(rows * width, scale)), weight(random.Floats(width));
        const auto y =
            RunAllSplits(KernelOf("pyvlm_rms_norm", isa), rows * width, [&](Guarded<float>* out) {
              return RmsNormParams{
                  x.input(), weight.input(), out->buffer(), rows, width, BitsOf(kEps), {}};
            });
        std::vector<double> want;
        for (size_t i = 0; i < rows; ++i) {
          double squares = 0;
          for (size_t k = 0; k < width; ++k) squares += std::pow(x[i * width + k], 2);
          const double norm = std::sqrt(squares / static_cast<double>(width) + kEps);
          for (size_t k = 0; k < width; ++k) want.push_back(x[i * width + k] / norm * weight[k]);
        }
        CHECK(RelativeError(y.data(), want) < 1e-6);

        // An identity matrix makes linear show its normalised input.
        std::vector<float> identity(width * width);
        for (size_t k = 0; k < width; ++k) identity[k * width + k] = 1.0f;
        Guarded<float> panels(PanelElements(width, width)), product(rows * width);
        PackPanels(identity.data(), width, width, panels.data());
        RunShares(KernelOf("pyvlm_linear_f32", isa),
                  LinearParams<float>{x.input(),
                                      weight.input(),
                                      panels.input(),
                                      x.input(),
                                      x.input(),
                                      product.buffer(),
                                      rows,
                                      width,
                                      width,
                                      kRmsNorm,
                                      BitsOf(kEps),
                                      {}},
                  2);
        for (size_t i = 0; i < product.size(); ++i) REQUIRE(product[i] == y[i]);
      }
    }
  }
}

TEST_CASE("layer_norm agrees with the reference, also far from zero") {
  Random random(3);
  for (const Isa isa : SupportedIsas()) {
    for (const size_t width : {1, 7, 8, 31, 64, 768, 1001}) {
      for (const float shift : {0.0f, 100.0f}) {
        const size_t rows = 5;
        auto values = random.Floats(rows * width);
        for (float& value : values) value += shift;
        const Guarded<float> x(values), weight(random.Floats(width)), bias(random.Floats(width));
        const auto y =
            RunAllSplits(KernelOf("pyvlm_layer_norm", isa), rows * width, [&](Guarded<float>* out) {
              return LayerNormParams{x.input(), weight.input(), bias.input(), out->buffer(),
                                     rows,      width,          BitsOf(kEps), {}};
            });
        std::vector<double> want;
        const auto count = static_cast<double>(width);
        for (size_t i = 0; i < rows; ++i) {
          double mean = 0, variance = 0;
          for (size_t k = 0; k < width; ++k) mean += x[i * width + k] / count;
          for (size_t k = 0; k < width; ++k) {
            variance += std::pow(x[i * width + k] - mean, 2) / count;
          }
          const double norm = std::sqrt(variance + kEps);
          for (size_t k = 0; k < width; ++k) {
            want.push_back((x[i * width + k] - mean) / norm * weight[k] + bias[k]);
          }
        }
        CHECK(RelativeError(y.data(), want, 1.0) < (shift == 0 ? 2e-6 : 4e-5));
      }
    }
  }
}

TEST_CASE("norms keep the poison of a row to itself") {
  for (const Isa isa : SupportedIsas()) {
    Guarded<float> x(Random(4).Floats(3 * 40)), ones(std::vector<float>(40, 1.0f));
    x[40 + 7] = INFINITY;
    Guarded<float> y(3 * 40);
    RunShares(KernelOf("pyvlm_rms_norm", isa),
              RmsNormParams{x.input(), ones.input(), y.buffer(), 3, 40, BitsOf(kEps), {}}, 2);
    CHECK(std::isnan(y[40 + 7]));
    for (size_t k = 0; k < 40; ++k) CHECK((std::isfinite(y[k]) && std::isfinite(y[80 + k])));
    RunShares(
        KernelOf("pyvlm_layer_norm", isa),
        LayerNormParams{x.input(), ones.input(), ones.input(), y.buffer(), 3, 40, BitsOf(kEps), {}},
        2);
    CHECK(std::isnan(y[40]));
    for (size_t k = 0; k < 40; ++k) CHECK((std::isfinite(y[k]) && std::isfinite(y[80 + k])));
  }
}

TEST_CASE("add_position picks the bucket of each axis, and position 0 for padding") {
  Random random(5);
  for (const Isa isa : SupportedIsas()) {
    for (const size_t grid : {1, 4, 6}) {
      const size_t width = 20, patches = grid * grid;
      std::vector<int32_t> buckets((grid + 1) * grid);
      for (auto& bucket : buckets) bucket = static_cast<int32_t>(random.Below(grid));
      const Guarded<int32_t> table(buckets);
      const Guarded<float> position(random.Floats(patches * width));
      const Guarded<float> x(random.Floats(patches * width));
      for (const auto& [rows, cols] :
           {std::pair{grid, grid}, {size_t{1}, grid}, {grid, size_t{1}}}) {
        const Guarded<int32_t> valid(
            std::vector<int32_t>{static_cast<int32_t>(rows), static_cast<int32_t>(cols)});
        const auto y =
            RunAllSplits(KernelOf("pyvlm_add_position", isa), x.size(), [&](Guarded<float>* out) {
              std::copy_n(x.data(), x.size(), out->data());
              return AddPositionParams{out->buffer(), position.input(),
                                       table.input(), valid.input(),
                                       patches,       grid,
                                       width,         {}};
            });
        for (size_t i = 0; i < y.size(); ++i) {
          const size_t r = i / width / grid, c = i / width % grid;
          size_t bucket = 0;
          if (r < rows && c < cols) {
            bucket = static_cast<size_t>(buckets[rows * grid + r]) * grid +
                     static_cast<size_t>(buckets[cols * grid + c]);
          }
          REQUIRE(y[i] == x[i] + position[bucket * width + i % width]);
        }
      }
    }
  }
}

// Follows the view and permute steps of the reference literally.
std::vector<float> ShuffleByPermutes(const std::vector<float>& x, size_t grid, size_t width,
                                     size_t s) {
  const size_t side = grid / s;
  std::vector<float> first(x.size()), second(x.size());
  // [grid, side, width * s] -> permute(1, 0) -> [side, grid, width * s]
  for (size_t h = 0; h < grid; ++h) {
    for (size_t w = 0; w < side; ++w) {
      std::copy_n(&x[(h * side + w) * width * s], width * s, &first[(w * grid + h) * width * s]);
    }
  }
  // [side, side, width * s * s] -> permute(1, 0)
  for (size_t w = 0; w < side; ++w) {
    for (size_t h = 0; h < side; ++h) {
      const size_t block = width * s * s;
      std::copy_n(&first[(w * side + h) * block], block, &second[(h * side + w) * block]);
    }
  }
  return second;
}

TEST_CASE("pixel_shuffle has the order of the reference") {
  Random random(6);
  for (const Isa isa : SupportedIsas()) {
    for (const auto& [grid, factor] : {std::pair<size_t, size_t>{4, 2}, {12, 4}, {9, 3}, {3, 1}}) {
      const size_t width = 10;
      const auto values = random.Floats(grid * grid * width);
      const Guarded<float> x(values);
      const auto y =
          RunAllSplits(KernelOf("pyvlm_pixel_shuffle", isa), x.size(), [&](Guarded<float>* out) {
            return PixelShuffleParams{x.input(), out->buffer(), grid, width, factor, {}};
          });
      const auto want = ShuffleByPermutes(values, grid, width, factor);
      CHECK(std::memcmp(y.data(), want.data(), want.size() * sizeof(float)) == 0);
    }
  }
}

TEST_CASE("rows_from_f16 widens every half exactly") {
  Guarded<Half> halves(65536 + 5);
  for (size_t i = 0; i < halves.size(); ++i) halves[i].bits = static_cast<uint16_t>(i);
  for (const Isa isa : SupportedIsas()) {
    const auto y =
        RunAllSplits(KernelOf("pyvlm_rows_from_f16", isa), halves.size(), [&](Guarded<float>* out) {
          return WidenParams<Half>{halves.input(), out->buffer(), halves.size(), {}};
        });
    for (size_t i = 0; i < y.size(); ++i) {
      const float want = ToFloat(halves[i]);
      REQUIRE((y[i] == want || (std::isnan(y[i]) && std::isnan(want))));
    }
  }
}

}  // namespace
}  // namespace pyvlm::kernels
