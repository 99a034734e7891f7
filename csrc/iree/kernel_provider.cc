#include "csrc/iree/kernel_provider.h"

#include <string>

#include "csrc/iree/status.h"
#include "csrc/kernels/registry.h"

namespace pyvlm {
namespace {

thread_local int64_t num_resolved = 0;

iree_status_t ResolveAll(iree_host_size_t count, const char* const* names, void** functions,
                         void** contexts, iree_hal_executable_import_resolution_t* resolution) {
  std::string missing;
  for (iree_host_size_t i = 0; i < count; ++i) {
    if (functions[i] != nullptr) continue;
    std::string_view name = names[i];
    const bool optional = name.starts_with('?');
    if (optional) name.remove_prefix(1);
    functions[i] = kernels::FindKernel(name);
    contexts[i] = nullptr;
    if (functions[i] != nullptr) {
      ++num_resolved;
    } else if (!optional) {
      missing += (missing.empty() ? "" : ", ") + std::string(name);
    } else if (resolution != nullptr) {
      *resolution |= IREE_HAL_EXECUTABLE_IMPORT_RESOLUTION_MISSING_OPTIONAL;
    }
  }
  if (missing.empty()) return nullptr;
  // Not NOT_FOUND: the plugin manager would replace the message of that one by its own.
  return MakeStatus(
      IREE_STATUS_INCOMPATIBLE,
      "the program needs native kernels that this build of pyvlm has not: " + missing);
}

iree_status_t Resolve(void*, iree_host_size_t count, const char* const* names, void** functions,
                      void** contexts, iree_hal_executable_import_resolution_t* resolution) {
  if (resolution != nullptr) *resolution = 0;
  try {
    return ResolveAll(count, names, functions, contexts, resolution);
  } catch (const std::exception& error) {
    return MakeStatus(IREE_STATUS_INTERNAL, error.what());
  }
}

}  // namespace

iree_hal_executable_import_provider_t KernelProvider() { return {nullptr, Resolve}; }

int64_t NumKernelsResolved() { return num_resolved; }

}  // namespace pyvlm
