#pragma once

#include <string>
#include <vector>

#include "csrc/iree/symbols.h"

namespace pyvlm {

// The version of IREE that capi.h describes. Compiler and runtime must both have it: a module of
// another version is refused by the runtime.
inline constexpr const char* kIreeVersion = "3.9.0";

// Loads the runtime library at `path` and resolves every symbol; from then on Iree() works. The
// library stays for the life of the process. A second call with the same path does nothing, with
// another path it throws. Any thread. A build against an installed IREE needs no call and ignores
// it. Throws Error(runtime_missing) naming the library, or the symbol that it lacks.
void LoadIree(const std::string& path);

// The runtime's functions. Throws Error(runtime_missing) before LoadIree. Any thread.
const Symbols& Iree();

// Path of the loaded library; empty if none is loaded yet, "(linked)" for an installed IREE.
std::string IreeLibraryPath();

}  // namespace pyvlm
