#include "csrc/kernels/linear_testing.h"

namespace pyvlm::kernels {
namespace {

// Makes every row of x survive quantisation: whole multiples of a power of two, the largest 32766.
void MakeLossless(Random* random, Problem<int8_t>* problem) {
  for (size_t i = 0; i < problem->x.size(); ++i) {
    const auto whole = static_cast<float>(random->Below(2 * 32766 + 1)) - 32766.0f;
    problem->x[i] = (i % problem->in_size == 0 ? 32766.0f : whole) * 0x1p-14f;
  }
}

Guarded<float> Run(const Problem<int8_t>& problem, Isa isa, size_t workgroup_count) {
  Guarded<float> y(problem.num_rows * problem.y_width);
  RunShares(KernelOf("pyvlm_linear_q8", isa), problem.Params(&y, 0, problem.num_rows),
            workgroup_count);
  CHECK(y.IsIntact());
  return y;
}

// Without the rounding of activations nothing but float rounding is left.
TEST_CASE("q8 linear is exact for activations of 15 bits") {
  Random random(1);
  for (const Isa isa : SupportedIsas()) {
    for (const size_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 14, 64}) {
      for (const Shape shape : {Shape{1, 1}, Shape{33, 17}, Shape{576, 40}, Shape{1100, 31}}) {
        for (const size_t flags : {size_t{0}, +kSwiGlu, kBias | kGelu | kResidual}) {
          Problem<int8_t> problem(&random, rows, shape, flags);
          MakeLossless(&random, &problem);
          CHECK(RelativeError(Run(problem, isa, 2).data(), problem.Reference(), 1.0) < 4e-6);
        }
      }
    }
  }
}

// Sets agree to the bit where no norm and no activation function is involved.
TEST_CASE("q8 linear gives the portable bits, at any size") {
  if (!IsSupported(Isa::avx2)) return;
  Random random(2);
  for (int round = 0; round < 150; ++round) {
    const Shape shape{1 + random.Below(round % 3 == 0 ? 900 : 130), 1 + random.Below(100)};
    const size_t rows = 1 + random.Below(round % 5 == 0 ? 90 : 16);
    const size_t flags = random.Below(2) * kBias | random.Below(2) * kResidual;
    CAPTURE(rows);
    CAPTURE(shape.in_size);
    CAPTURE(shape.out_size);
    const Problem<int8_t> problem(&random, rows, shape, flags);
    const auto y = Run(problem, Isa::avx2, 1 + random.Below(9));
    CHECK(y.SameBits(Run(problem, Isa::scalar, 1)));
  }
}

template <typename T>
Buffer<const T> Copied(const Guarded<T>& values, std::vector<T>* out) {
  out->assign(values.data(), values.data() + values.size());
  out->shrink_to_fit();
  return {out->data(), 0};
}

// Operands without guards: the address sanitizer sees every access past an end.
TEST_CASE("q8 linear stays inside operands of random sizes") {
  Random random(6);
  for (int round = 0; round < 60; ++round) {
    const Shape shape{1 + random.Below(120), 1 + random.Below(70)};
    const size_t rows = 1 + random.Below(24);
    const size_t flags = random.Below(2) * kRmsNorm | random.Below(2) * kResidual |
                         (round % 2 == 0 ? +kSwiGlu : random.Below(2) * kBias);
    const Problem<int8_t> problem(&random, rows, shape, flags);
    for (const Isa isa : SupportedIsas()) {
      std::vector<float> x, norm, bias, residual, y(rows * problem.y_width);
      std::vector<int8_t> panels;
      const LinearParams<int8_t> params{Copied(problem.x, &x),
                                        Copied(problem.norm, &norm),
                                        Copied(problem.panels, &panels),
                                        Copied(problem.bias, &bias),
                                        Copied(problem.residual, &residual),
                                        {y.data(), 0},
                                        rows,
                                        problem.in_size,
                                        problem.out_size,
                                        flags,
                                        BitsOf(kEps),
                                        {}};
      RunShares(KernelOf("pyvlm_linear_q8", isa), params, 1 + random.Below(5));
      CHECK(std::memcmp(y.data(), Run(problem, isa, 1).data(), y.size() * sizeof(float)) == 0);
    }
  }
}

TEST_CASE("q8 linear shares run at once") {
  Random random(3);
  for (const Isa isa : SupportedIsas()) {
    for (const size_t rows : {1, 5, 20}) {
      const Problem<int8_t> problem(&random, rows, {40, 90}, kRmsNorm | kSwiGlu);
      Guarded<float> many(rows * problem.y_width);
      RunAtOnce(KernelOf("pyvlm_linear_q8", isa), problem.Params(&many, 0, rows), 4);
      CHECK(many.SameBits(Run(problem, isa, 1)));
    }
  }
}

// A poisoned row shows in all its outputs and in no other row.
TEST_CASE("q8 linear keeps NaN and infinity") {
  Random random(4);
  for (const Isa isa : SupportedIsas()) {
    for (const size_t flags : {size_t{0}, +kSwiGlu, kRmsNorm | kResidual, kBias | kGelu}) {
      for (const size_t rows : {1, 4, 20}) {
        for (const float bad : {NAN, INFINITY, -INFINITY, -NAN}) {
          Problem<int8_t> problem(&random, rows, {70, 48}, flags);
          const auto clean = Run(problem, isa, 1);
          const size_t row = rows / 2, width = problem.y_width;
          problem.x[row * 70 + 69] = bad;
          const auto dirty = Run(problem, isa, 3);
          for (size_t i = 0; i < dirty.size(); ++i) {
            if (i / width == row) {
              CHECK_FALSE(std::isfinite(dirty[i]));
            } else {
              CHECK(dirty[i] == clean[i]);
            }
          }
        }
      }
    }
  }
}

// Rows of zeros, below and just above the least magnitude, and near the largest float.
TEST_CASE("q8 linear handles rows of extreme magnitude") {
  Random random(5);
  for (const Isa isa : SupportedIsas()) {
    for (const bool flush_denormals : {false, true}) {
      for (const size_t rows : {6, 12}) {
        Problem<int8_t> problem(&random, rows, {64, 16}, 0);
        const float factors[] = {0.0f, -0.0f, 1e-44f, 1e-33f, 1e-28f, 1.5e37f};
        for (size_t i = 0; i < problem.x.size(); ++i) problem.x[i] *= factors[i / 64 % 6];
        Guarded<float> y(rows * 16);
        if (flush_denormals) {
          const FlushDenormals flush;
          y = Run(problem, isa, 2);
        } else {
          y = Run(problem, isa, 2);
        }
        const auto want = problem.Reference();
        for (size_t i = 0; i < y.size(); ++i) {
          const float factor = factors[i / 16 % 6];
          if (factor < 1e-30f) {
            CHECK(y[i] == 0.0f);
          } else {
            CHECK(std::abs(y[i] - want[i]) < 2e-4 * static_cast<double>(factor));
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace pyvlm::kernels
