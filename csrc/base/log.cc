#include "csrc/base/log.h"

#include <cstdio>

namespace pyvlm {

void LogInternal(const char* where, const char* what) noexcept {
  std::fprintf(stderr, "pyvlm: internal error in %s: %s\n", where, what);
}

}  // namespace pyvlm
