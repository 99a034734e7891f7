#include "csrc/kernels/registry.h"

#include "csrc/kernels/kernel_testing.h"

namespace pyvlm::kernels {
namespace {

TEST_CASE("every symbol is found, names are unique, unknown ones are null") {
  for (const KernelEntry& entry : ScalarKernels()) {
    CHECK(FindKernel(entry.name) != nullptr);
    CHECK(FindKernel(entry.name, Isa::scalar) == reinterpret_cast<void*>(entry.function));
    const auto same = [&](const KernelEntry& other) { return other.name == entry.name; };
    CHECK(std::count_if(ScalarKernels().begin(), ScalarKernels().end(), same) == 1);
  }
  CHECK(FindKernel("pyvlm_linear_f64") == nullptr);
  CHECK(FindKernel("", Isa::scalar) == nullptr);
}

TEST_CASE("vector kernels are versions of portable ones and are preferred") {
  for (const KernelEntry& entry : Avx2Kernels()) {
    CHECK(FindKernel(entry.name, Isa::scalar) != nullptr);
    if (BestIsa() == Isa::avx2) {
      CHECK(FindKernel(entry.name) == reinterpret_cast<void*>(entry.function));
    }
  }
}

}  // namespace
}  // namespace pyvlm::kernels
