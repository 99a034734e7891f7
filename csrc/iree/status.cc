#include "csrc/iree/status.h"

#include <algorithm>

#include "csrc/iree/library.h"

namespace pyvlm {
namespace {

// The first line of the status: the others are stack traces. Consumes the status.
std::string TakeText(iree_status_t status) {
  iree_allocator_t allocator = HostAllocator();
  char* text = nullptr;
  iree_host_size_t size = 0;
  std::string result;
  if (Iree().status_to_string(status, &allocator, &text, &size)) {
    result.assign(text, size);
    result.erase(std::min(result.find('\n'), result.size()));
    result.erase(result.find_last_not_of("; ") + 1);
    void* block = text;
    Iree().allocator_libc_ctl(nullptr, IREE_ALLOCATOR_COMMAND_FREE, nullptr, &block);
  }
  Iree().status_free(status);
  return result;
}

ErrorCode CodeFor(iree_status_code_t status, ErrorCode otherwise) {
  switch (status) {
    case IREE_STATUS_RESOURCE_EXHAUSTED:
      return ErrorCode::kOutOfMemory;
    case IREE_STATUS_UNAVAILABLE:
    // A dispatch has failed. local-task keeps the first failure of its queue for ever and discards
    // everything that comes later, of any program on the device (docs/adr/0009).
    case IREE_STATUS_ABORTED:
      return ErrorCode::kDeviceUnavailable;
    default:
      return otherwise;
  }
}

}  // namespace

iree_allocator_t HostAllocator() { return {nullptr, Iree().allocator_libc_ctl}; }

void Check(iree_status_t status, ErrorCode code, std::string_view action) {
  iree_status_code_t status_code = StatusCode(status);
  if (status_code == IREE_STATUS_OK) return;
  std::string text = TakeText(status);
  if (status_code == IREE_STATUS_ABORTED) {
    text = "the device has failed and runs nothing more: " + text;
  }
  throw Error(CodeFor(status_code, code), std::string(action) + ": " + text);
}

iree_status_t MakeStatus(iree_status_code_t code, std::string_view message) noexcept {
  // The plain status_allocate would keep a pointer to the message instead of copying it.
  return Iree().status_allocate_f(code, __FILE__, 0, "%.*s", static_cast<int>(message.size()),
                                  message.data());
}

}  // namespace pyvlm
