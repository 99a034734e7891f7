#include "csrc/kernels/linear_testing.h"

namespace pyvlm::kernels {
namespace {

// For q8 the rounding of activations to 15 bits, which swiglu amplifies, is what counts.
template <typename W>
constexpr double kTolerance = std::is_same_v<W, int8_t> ? 2e-4 : 4e-6;

// All rows at once in one share against the reference; then other splits, bit by bit.
template <typename W>
void CheckProblem(const Problem<W>& problem, Isa isa) {
  const KernelFn kernel = KernelOf(Suffixed<W>("pyvlm_linear"), isa);
  Guarded<float> y(problem.num_rows * problem.y_width);
  RunShares(kernel, problem.Params(&y, 0, problem.num_rows), 1);
  CHECK(RelativeError(y.data(), problem.Reference(), 1.0) < kTolerance<W>);
  CHECK(y.IsIntact());
  for (const size_t count : {2, 3, 7, 64}) {
    Guarded<float> split(y.size());
    RunShares(kernel, problem.Params(&split, 0, problem.num_rows), count);
    CHECK(split.SameBits(y));
    CHECK(split.IsIntact());
  }
}

template <typename W>
void CheckShapes(size_t seed, const std::vector<size_t>& rows, const std::vector<Shape>& shapes,
                 const std::vector<size_t>& flags) {
  Random random(static_cast<unsigned>(seed));
  for (const Isa isa : SupportedIsas()) {
    for (const size_t m : rows) {
      for (const Shape shape : shapes) {
        for (const size_t flag_bits : flags) {
          CAPTURE(static_cast<int>(isa));
          CAPTURE(m);
          CAPTURE(shape.in_size);
          CAPTURE(shape.out_size);
          CAPTURE(flag_bits);
          CheckProblem(Problem<W>(&random, m, shape, flag_bits), isa);
        }
      }
    }
  }
}

const std::vector<size_t> kAllFlags = {0,
                                       kRmsNorm,
                                       kResidual,
                                       kSwiGlu,
                                       kRmsNorm | kSwiGlu,
                                       kSwiGlu | kResidual,
                                       kBias,
                                       kBias | kGelu,
                                       kGelu | kResidual,
                                       kRmsNorm | kBias | kGelu | kResidual};

TEST_CASE_TEMPLATE("linear agrees with the reference for few rows", W, Half, float, int8_t) {
  CheckShapes<W>(1, {1, 2, 3, 4, 5, 6, 7, 8}, {{1, 1}, {33, 17}, {96, 80}}, kAllFlags);
}

TEST_CASE_TEMPLATE("linear agrees with the reference for many rows", W, Half, float, int8_t) {
  CheckShapes<W>(2, {9, 11, 64, 130}, {{7, 5}, {65, 50}, {300, 96}}, kAllFlags);
}

TEST_CASE_TEMPLATE("linear agrees with the reference in model sizes", W, Half, float, int8_t) {
  CheckShapes<W>(3, {1, 8, 13}, {{576, 960}, {1536, 576}, {577, 1535}},
                 {kRmsNorm, kResidual, kSwiGlu});
  CheckShapes<W>(4, {64}, {{3100, 100}}, {kBias | kGelu});
}

TEST_CASE_TEMPLATE("linear tolerates zero rows", W, Half, float, int8_t) {
  Random random(5);
  const Problem<W> problem(&random, 1, {16, 32}, 0);
  for (const Isa isa : SupportedIsas()) {
    Guarded<float> y(32);
    const Guarded<float> before = y;
    RunShares(KernelOf(Suffixed<W>("pyvlm_linear"), isa), problem.Params(&y, 0, 0), 3);
    CHECK(y.SameBits(before));
  }
}

// The promise of batch invariance: a row has the same bits alone, in any batch, and in a prefill.
TEST_CASE_TEMPLATE("linear gives a row the same bits in any batch", W, Half, float, int8_t) {
  constexpr size_t kRows = 29;
  Random random(6);
  for (const Isa isa : SupportedIsas()) {
    for (const Shape shape : {Shape{576, 70}, Shape{801, 33}, Shape{40, 200}}) {
      for (const size_t flags : {kRmsNorm | kSwiGlu, kBias | kGelu | kResidual}) {
        const Problem<W> problem(&random, kRows, shape, flags);
        const KernelFn kernel = KernelOf(Suffixed<W>("pyvlm_linear"), isa);
        Guarded<float> all(kRows * problem.y_width);
        RunShares(kernel, problem.Params(&all, 0, kRows), 2);
        for (size_t rows = 1; rows <= 12; ++rows) {
          for (size_t first = 0; first + rows <= kRows; first += rows) {
            Guarded<float> part(rows * problem.y_width);
            RunShares(kernel, problem.Params(&part, first, rows), 1 + first % 4);
            CHECK(std::memcmp(part.data(), all.data() + first * problem.y_width,
                              part.size() * sizeof(float)) == 0);
          }
        }
      }
    }
  }
}

TEST_CASE("linear shares run at once") {
  Random random(9);
  for (const Isa isa : SupportedIsas()) {
    for (const size_t rows : {1, 5, 20}) {
      const Problem<Half> problem(&random, rows, {40, 90}, kRmsNorm | kSwiGlu);
      const KernelFn kernel = KernelOf("pyvlm_linear_f16", isa);
      Guarded<float> one(rows * problem.y_width), many(rows * problem.y_width);
      RunShares(kernel, problem.Params(&one, 0, rows), 1);
      RunAtOnce(kernel, problem.Params(&many, 0, rows), 4);
      CHECK(many.SameBits(one));
    }
  }
}

TEST_CASE_TEMPLATE("linear_rows reads and writes at row offsets", W, Half, float, int8_t) {
  constexpr size_t kRows = 5, kXOffset = 3, kYOffset = 4;
  Random random(7);
  for (const Isa isa : SupportedIsas()) {
    for (const size_t flags : {static_cast<size_t>(kResidual), kSwiGlu | kResidual}) {
      Problem<W> problem(&random, kRows + kXOffset + kYOffset, {48, 38}, flags);
      Guarded<float> want(kRows * problem.y_width);
      auto plain = problem.Params(&want, kXOffset, kRows);
      plain.residual = problem.residual.input();
      plain.residual.offset += kYOffset * problem.y_width;
      RunShares(KernelOf(Suffixed<W>("pyvlm_linear"), isa), plain, 1);

      Guarded<float> got((kRows + kYOffset) * problem.y_width);
      const Guarded<float> before = got;
      const auto base = problem.Params(&got, 0, kRows);
      const LinearRowsParams<W> rows{base.x,        base.norm_weight,
                                     base.matrix,   base.bias,
                                     base.residual, base.y,
                                     kRows,         base.in_size,
                                     base.out_size, flags,
                                     base.eps_bits, kXOffset,
                                     kYOffset,      {0, 1}};
      RunShares(KernelOf(Suffixed<W>("pyvlm_linear_rows"), isa), rows, 3);
      const size_t skipped = kYOffset * problem.y_width;
      CHECK(std::memcmp(got.data(), before.data(), skipped * sizeof(float)) == 0);
      CHECK(std::memcmp(got.data() + skipped, want.data(), want.size() * sizeof(float)) == 0);
      CHECK(got.IsIntact());
    }
  }
}

// Saturated activations, signed zeros, denormal weights, and a poisoned row that stays alone.
TEST_CASE_TEMPLATE("linear handles extreme values", W, Half, float) {
  Random random(8);
  for (const Isa isa : SupportedIsas()) {
    const KernelFn kernel = KernelOf(Suffixed<W>("pyvlm_linear"), isa);
    Problem<W> swiglu(&random, 2, {1, 32}, kSwiGlu);
    for (size_t n = 0; n < 16; ++n) {
      FromFloat(n % 2 == 0 ? 1000.0f : -1000.0f, &swiglu.panels[n % 8]);
      FromFloat(1.0f, &swiglu.panels[8 + n % 8]);
    }
    swiglu.x[0] = 1.0f;
    swiglu.x[1] = -0.0f;
    Guarded<float> y(2 * 16);
    RunShares(kernel, swiglu.Params(&y, 0, 2), 1);
    CHECK(y[0] == doctest::Approx(1000.0f));
    CHECK(std::abs(y[1]) < 1e-30f);  // silu(-1000): neither NaN nor -1000
    CHECK(y[16] == 0.0f);

    for (const float tiny : {6e-8f, -3e-6f}) {
      Problem<W> denormal(&random, 1, {3, 16}, 0);
      for (size_t i = 0; i < 48; ++i) FromFloat(tiny, &denormal.panels[i]);
      for (size_t k = 0; k < 3; ++k) denormal.x[k] = 1e6f;
      Guarded<float> small(16);
      const FlushDenormals flush;
      RunShares(kernel, denormal.Params(&small, 0, 1), 1);
      CHECK(small[5] == doctest::Approx(3e6 * ToFloat(denormal.panels[5])));
    }

    for (const size_t rows : {4, 20}) {
      Problem<W> poisoned(&random, rows, {64, 48}, kRmsNorm | kResidual);
      Guarded<float> clean(rows * 48), dirty(rows * 48);
      RunShares(kernel, poisoned.Params(&clean, 0, rows), 1);
      poisoned.x[64 + 3] = NAN;
      RunShares(kernel, poisoned.Params(&dirty, 0, rows), 2);
      for (size_t n = 0; n < 48; ++n) CHECK(std::isnan(dirty[48 + n]));
      CHECK(std::memcmp(clean.data(), dirty.data(), 48 * sizeof(float)) == 0);
      CHECK(std::memcmp(clean.data() + 96, dirty.data() + 96, (rows - 2) * 48 * 4) == 0);
    }
  }
}

TEST_CASE("gelu and silu keep NaN and saturate") {
  Random random(9);
  for (const Isa isa : SupportedIsas()) {
    for (const size_t flags : {static_cast<size_t>(kGelu), static_cast<size_t>(kSwiGlu)}) {
      Problem<float> problem(&random, 1, {1, 16}, flags);
      for (size_t i = 0; i < 16; ++i) problem.panels[i] = 1.0f;
      for (const float x : {-200.0f, -20.0f, -1e-30f, 0.0f, 1e-30f, 20.0f, 200.0f, NAN}) {
        problem.x[0] = x;
        Guarded<float> y(problem.y_width);
        RunShares(KernelOf("pyvlm_linear_f32", isa), problem.Params(&y, 0, 1), 1);
        if (std::isnan(x)) {
          CHECK(std::isnan(y[0]));
        } else {
          const double gate = 1 / (1 + std::exp(-static_cast<double>(x)));
          const double want = flags == kGelu ? (x > 0 ? x : 0) : x * gate * x;
          CHECK(std::abs(y[0] - want) <= 1e-6 * (1 + std::abs(want)));
        }
      }
    }
  }
}

TEST_CASE("linear refuses swiglu with bias") {
  Random random(10);
  Problem<float> problem(&random, 1, {8, 16}, kSwiGlu);
  problem.flags |= kBias;
  for (const Isa isa : SupportedIsas()) {
    Guarded<float> y(8);
    auto params = problem.Params(&y, 0, 1);
    CHECK(KernelOf("pyvlm_linear_f32", isa)(&params, nullptr, nullptr) == kInvalidArgument);
  }
}

}  // namespace
}  // namespace pyvlm::kernels
