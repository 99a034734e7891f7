#include "csrc/kernels/registry.h"

namespace pyvlm::kernels {

std::span<const KernelEntry> Avx2Kernels() { return {}; }

}  // namespace pyvlm::kernels
