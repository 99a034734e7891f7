#include "csrc/iree/library.h"

#include <dlfcn.h>

#include <atomic>
#include <mutex>

#include "csrc/base/error.h"

namespace pyvlm {

#if defined(PYVLM_IREE_INSTALLED)

void LoadIree(const std::string&) {}

const Symbols& Iree() {
  static const Symbols symbols = {
#define PYVLM_LINKED(name) .name = &::iree_##name,
      PYVLM_IREE_SYMBOLS(PYVLM_LINKED)
#undef PYVLM_LINKED
  };
  return symbols;
}

std::string IreeLibraryPath() { return "(linked)"; }

#else

namespace {

struct Library {
  std::string path;
  Symbols symbols;
};

// Set once, never freed: buffers of the runtime may be released as late as static destruction.
std::atomic<const Library*> loaded{nullptr};

void* Find(void* handle, const char* symbol, const std::string& path) {
  if (void* address = dlsym(handle, symbol)) return address;
  throw Error(
      ErrorCode::kRuntimeMissing,
      path + " has no symbol " + symbol + "; pyvlm needs the library of shortfin " + kIreeVersion);
}

Symbols Resolve(void* handle, const std::string& path) {
  Symbols symbols;
#define PYVLM_RESOLVE(name) \
  symbols.name = reinterpret_cast<decltype(symbols.name)>(Find(handle, "iree_" #name, path));
  PYVLM_IREE_SYMBOLS(PYVLM_RESOLVE)
#undef PYVLM_RESOLVE
#define PYVLM_RESOLVE_OPTIONAL(name) \
  symbols.name = reinterpret_cast<decltype(symbols.name)>(dlsym(handle, "iree_" #name));
  PYVLM_IREE_OPTIONAL_SYMBOLS(PYVLM_RESOLVE_OPTIONAL)
#undef PYVLM_RESOLVE_OPTIONAL
  return symbols;
}

}  // namespace

void LoadIree(const std::string& path) {
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  if (const Library* library = loaded.load()) {
    if (library->path == path) return;
    throw Error(ErrorCode::kRuntimeMissing,
                "the runtime library " + library->path + " is loaded already; cannot load " + path);
  }
  // Local, so that its symbols neither serve nor shadow those of another copy of the runtime.
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    throw Error(ErrorCode::kRuntimeMissing,
                std::string("cannot load the runtime library: ") + dlerror());
  }
  try {
    loaded.store(new Library{path, Resolve(handle, path)});
  } catch (...) {
    dlclose(handle);
    throw;
  }
}

const Symbols& Iree() {
  const Library* library = loaded.load(std::memory_order_acquire);
  if (library == nullptr) {
    throw Error(ErrorCode::kRuntimeMissing, "the IREE runtime library has not been loaded");
  }
  return library->symbols;
}

std::string IreeLibraryPath() {
  const Library* library = loaded.load();
  return library == nullptr ? std::string() : library->path;
}

#endif

}  // namespace pyvlm
