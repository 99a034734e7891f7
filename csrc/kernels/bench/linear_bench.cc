// Compares 8-bit with f16 weights, one matrix product at a time.
//
//   linear_bench [ROUNDS]
//
// Calls alternate between the two, so that other load meets both alike; each figure is the least
// CPU time of one call on one thread over all rounds. Matrices of decode shapes are cycled through
// copies larger than the third cache, as the layers of a model are.
#include <cstdio>
#include <cstdlib>

#include "csrc/kernels/bench/step.h"

namespace pyvlm::kernels {
namespace {

struct Shape {
  const char* name;
  size_t in_size, out_size, flags;
};

template <typename W>
class Product {
 public:
  Product(const Shape& shape, size_t rows, size_t copies)
      : shape_(shape),
        rows_(rows),
        x_(Noise(rows * shape.in_size, 1.0f)),
        y_(rows * shape.out_size),
        ones_(std::max(shape.in_size, shape.out_size), 0.5f) {
    for (size_t i = 0; i < copies; ++i) {
      matrices_.push_back(Weights<W>(shape.out_size, shape.in_size));
    }
    void* found = FindKernel(Suffixed<W>("pyvlm_linear"));
    if (found == nullptr) std::abort();
    kernel_ = reinterpret_cast<KernelFn>(found);
  }

  void Call() {
    LinearParams<W> params{View<const float>(x_),
                           View<const float>(ones_),
                           View<const W>(matrices_[calls_++ % matrices_.size()]),
                           View<const float>(ones_),
                           View<const float>(y_),
                           View<float>(y_),
                           rows_,
                           shape_.in_size,
                           shape_.out_size,
                           shape_.flags,
                           BitsFromFloat(1e-5f),
                           {0, 1}};
    const double start = ThreadCpuMs();
    if (kernel_(&params, nullptr, nullptr) != kOk) std::abort();
    least_ms = std::min(least_ms, ThreadCpuMs() - start);
  }

  double least_ms = 1e300;

 private:
  Shape shape_;
  size_t rows_, calls_ = 0;
  std::vector<float> x_, y_, ones_;
  std::vector<std::vector<W>> matrices_;
  KernelFn kernel_;
};

void Compare(const Shape& shape, size_t rows, size_t rounds) {
  const size_t copies = rows <= 8 ? 1 + 64 * 1024 * 1024 / (shape.in_size * shape.out_size) : 1;
  Product<Half> half(shape, rows, copies);
  Product<int8_t> bytes(shape, rows, copies);
  for (size_t i = 0; i < rounds * (rows <= 8 ? 20 : 1); ++i) {
    half.Call();
    bytes.Call();
  }
  const double macs = static_cast<double>(rows * shape.in_size * shape.out_size);
  std::printf("%-8s M=%-5zu f16 %8.3f ms %6.1f GFLOP/s   q8 %8.3f ms %6.1f GOP/s   ratio %.2f\n",
              shape.name, rows, half.least_ms, 2 * macs / half.least_ms / 1e6, bytes.least_ms,
              2 * macs / bytes.least_ms / 1e6, half.least_ms / bytes.least_ms);
  std::fflush(stdout);
}

}  // namespace
}  // namespace pyvlm::kernels

int main(int argc, char** argv) {
  using namespace pyvlm::kernels;
  const size_t rounds = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 20;
  const Shape decoder[] = {{"qkv", 576, 960, kRmsNorm},
                           {"o", 576, 576, kResidual},
                           {"gate/up", 576, 3072, kRmsNorm | kSwiGlu},
                           {"down", 1536, 576, kResidual}};
  for (const size_t rows : {1, 4, 8, 512}) {
    for (const Shape& shape : decoder) Compare(shape, rows, rounds);
    if (rows <= 8) Compare({"head", 576, 49280, kRmsNorm}, rows, 1 + rounds / 10);
  }
  const Shape tower[] = {{"qkv", 768, 2304, kBias},
                         {"fc1", 768, 3072, kBias | kGelu},
                         {"fc2", 3072, 768, kBias | kResidual}};
  for (const Shape& shape : tower) Compare(shape, 1024, 1 + rounds / 4);
  return 0;
}
