#include "csrc/base/process_mark.h"

#include <pthread.h>

#include <atomic>
#include <string>

#include "csrc/base/error.h"

namespace pyvlm {
namespace {

std::atomic<unsigned> generation{0};  // forks between the first process and this one

// Before any mark is made: the first fork counts, too.
[[maybe_unused]] const int is_registered =
    pthread_atfork(nullptr, nullptr, [] { generation.fetch_add(1, std::memory_order_relaxed); });

}  // namespace

ProcessMark::ProcessMark() : generation_(generation.load(std::memory_order_relaxed)) {}

bool ProcessMark::IsInherited() const noexcept {
  return generation_ != generation.load(std::memory_order_relaxed);
}

void ProcessMark::Require(const char* what) const {
  if (!IsInherited()) return;
  throw Error(ErrorCode::kEngineDead,
              std::string(what) +
                  " belongs to the process that this one was forked from, and so do its threads: "
                  "load it again here");
}

}  // namespace pyvlm
