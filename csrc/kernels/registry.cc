#include "csrc/kernels/registry.h"

#include <cstdlib>
#include <cstring>

namespace pyvlm::kernels {
namespace {

KernelFn FindIn(std::span<const KernelEntry> entries, std::string_view name) {
  for (const KernelEntry& entry : entries) {
    if (entry.name == name) return entry.function;
  }
  return nullptr;
}

bool CpuHasAvx2() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c");
#else
  return false;
#endif
}

Isa DecideIsa() {
  const char* forced = std::getenv("PYVLM_ISA");
  if (forced != nullptr && std::strcmp(forced, "scalar") == 0) return Isa::scalar;
  return IsSupported(Isa::avx2) ? Isa::avx2 : Isa::scalar;
}

}  // namespace

Isa BestIsa() {
  static const Isa isa = DecideIsa();
  return isa;
}

bool IsSupported(Isa isa) {
  static const bool has_avx2 = CpuHasAvx2() && !Avx2Kernels().empty();
  return isa == Isa::scalar || has_avx2;
}

void* FindKernel(std::string_view name) {
  void* best = FindKernel(name, BestIsa());
  return best != nullptr ? best : FindKernel(name, Isa::scalar);
}

void* FindKernel(std::string_view name, Isa isa) {
  if (!IsSupported(isa)) return nullptr;
  const auto entries = isa == Isa::avx2 ? Avx2Kernels() : ScalarKernels();
  return reinterpret_cast<void*>(FindIn(entries, name));
}

}  // namespace pyvlm::kernels
