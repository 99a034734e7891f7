// A random matrix product with its operands and its reference in double.
#ifndef PYVLM_KERNELS_LINEAR_TESTING_H_
#define PYVLM_KERNELS_LINEAR_TESTING_H_

#include "csrc/kernels/kernel_testing.h"
#include "csrc/kernels/pack.h"
#include "csrc/kernels/q8.h"

namespace pyvlm::kernels {

inline constexpr float kEps = 1e-5f;

struct Shape {
  size_t in_size, out_size;
};

// Matrices of q8 are kept as the floats that their bytes stand for.
template <typename W>
using Stored = std::conditional_t<std::is_same_v<W, int8_t>, float, W>;

template <typename W>
size_t PanelsSize(size_t out_size, size_t in_size, bool swiglu) {
  if constexpr (std::is_same_v<W, int8_t>) {
    return swiglu ? Q8GateUpBytes(out_size / 2, in_size) : Q8Bytes(out_size, in_size);
  } else {
    return swiglu ? GateUpPanelElements(out_size / 2, in_size) : PanelElements(out_size, in_size);
  }
}

template <typename W>
void Pack(std::vector<W>* matrix, size_t out_size, size_t in_size, bool swiglu, W* panels) {
  const W* up = matrix->data() + out_size / 2 * in_size;
  swiglu ? PackGateUp(matrix->data(), up, out_size / 2, in_size, panels)
         : PackPanels(matrix->data(), out_size, in_size, panels);
}

inline void Pack(std::vector<float>* matrix, size_t out_size, size_t in_size, bool swiglu,
                 int8_t* panels) {
  const float* up = matrix->data() + out_size / 2 * in_size;
  REQUIRE((swiglu ? PackGateUpQ8(matrix->data(), up, out_size / 2, in_size, panels)
                  : PackQ8(matrix->data(), out_size, in_size, panels)));
  const size_t rows = swiglu ? 8 : 16;
  for (size_t i = 0; i < matrix->size(); ++i) {
    const bool is_up = swiglu && i / in_size >= out_size / 2;
    const size_t n = i / in_size - (is_up ? out_size / 2 : 0);
    const int8_t* panel = panels + n / rows * Q8PanelBytes(in_size);
    (*matrix)[i] = Q8Element(panel, n % rows + (is_up ? 8 : 0), i % in_size);
  }
}

// One matrix product with all its operands; N is rounded to even for swiglu.
template <typename W>
struct Problem {
  size_t num_rows, in_size, out_size, flags, y_width;
  Guarded<float> x, norm, bias, residual;
  std::vector<Stored<W>> matrix;  // row-major
  Guarded<W> panels;

  Problem(Random* random, size_t rows, Shape shape, size_t flag_bits)
      : num_rows(rows),
        in_size(shape.in_size),
        out_size((flag_bits & kSwiGlu) != 0 ? (shape.out_size + 1) / 2 * 2 : shape.out_size),
        flags(flag_bits),
        y_width((flag_bits & kSwiGlu) != 0 ? out_size / 2 : out_size),
        x(random->Floats(rows * in_size, 2.0f)),
        norm(random->Floats(in_size, 1.5f)),
        bias(random->Floats(out_size)),
        residual(random->Floats(rows * y_width)),
        matrix(ConvertTo<Stored<W>>(
            random->Floats(out_size * in_size, 1.7f / std::sqrt(static_cast<float>(in_size))))),
        panels(PanelsSize<W>(out_size, in_size, (flag_bits & kSwiGlu) != 0)) {
    Pack(&matrix, out_size, in_size, (flags & kSwiGlu) != 0, panels.data());
  }

  LinearParams<W> Params(Guarded<float>* y, size_t first_row, size_t rows) const {
    LinearParams<W> p{x.input(),        norm.input(), panels.input(), bias.input(),
                      residual.input(), y->buffer(),  rows,           in_size,
                      out_size,         flags,        BitsOf(kEps),   {0, 1}};
    p.x.offset += first_row * in_size;
    p.residual.offset += first_row * y_width;
    return p;
  }

  std::vector<double> Inputs(size_t row) const {
    std::vector<double> inputs(in_size);
    double squares = 0;
    for (size_t k = 0; k < in_size; ++k) {
      inputs[k] = x[row * in_size + k];
      squares += inputs[k] * inputs[k];
    }
    if ((flags & kRmsNorm) == 0) return inputs;
    const double scale = 1 / std::sqrt(squares / static_cast<double>(in_size) + kEps);
    for (size_t k = 0; k < in_size; ++k) inputs[k] *= scale * norm[k];
    return inputs;
  }

  double Dot(const std::vector<double>& inputs, size_t n) const {
    double sum = 0;
    for (size_t k = 0; k < in_size; ++k) sum += inputs[k] * ToFloat(matrix[n * in_size + k]);
    return sum;
  }

  double Output(const std::vector<double>& inputs, size_t row, size_t n) const {
    double value = Dot(inputs, n);
    if ((flags & kSwiGlu) != 0) value = value / (1 + std::exp(-value)) * Dot(inputs, n + y_width);
    if ((flags & kBias) != 0) value += bias[n];
    if ((flags & kGelu) != 0) {
      value *= 0.5 * (1 + std::tanh(std::sqrt(2 / M_PI) * (value + 0.044715 * std::pow(value, 3))));
    }
    return (flags & kResidual) != 0 ? value + residual[row * y_width + n] : value;
  }

  std::vector<double> Reference() const {
    std::vector<double> want;
    for (size_t m = 0; m < num_rows; ++m) {
      const auto inputs = Inputs(m);
      for (size_t n = 0; n < y_width; ++n) want.push_back(Output(inputs, m, n));
    }
    return want;
  }
};

}  // namespace pyvlm::kernels

#endif  // PYVLM_KERNELS_LINEAR_TESTING_H_
