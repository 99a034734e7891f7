#pragma once

#include <cstdint>

#include "csrc/iree/capi.h"

namespace pyvlm {

// Resolves the native functions that compiled executables import to the kernels of csrc/kernels.
// A required import that is no kernel of this build fails the load with a message that names it.
iree_hal_executable_import_provider_t KernelProvider();

// Kernels resolved so far by loads on this thread: a program whose load adds to it uses kernels.
int64_t NumKernelsResolved();

}  // namespace pyvlm
