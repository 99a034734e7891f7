// Kernels by symbol name. Any thread; the tables are constant.
#ifndef PYVLM_KERNELS_REGISTRY_H_
#define PYVLM_KERNELS_REGISTRY_H_

#include <span>
#include <string_view>

#include "csrc/kernels/params.h"

namespace pyvlm::kernels {

enum class Isa { scalar, avx2 };

struct KernelEntry {
  std::string_view name;
  KernelFn function;
};

// The best instruction set of this CPU that the build has; the environment variable
// PYVLM_ISA=scalar forces the portable set. Decided once per process.
Isa BestIsa();

// True if this build has the set and this CPU can run it.
bool IsSupported(Isa isa);

// Version for BestIsa(); a kernel without one falls back to the portable one. Null if unknown.
void* FindKernel(std::string_view name);

// Exactly this version; null if unknown, absent, or not supported here.
void* FindKernel(std::string_view name, Isa isa);

// All symbols (those of the portable set, which is complete).
std::span<const KernelEntry> ScalarKernels();

// Symbols that have an AVX2 version; whether the CPU has it is not asked here.
std::span<const KernelEntry> Avx2Kernels();

}  // namespace pyvlm::kernels

#endif  // PYVLM_KERNELS_REGISTRY_H_
