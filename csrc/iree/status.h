#pragma once

#include <string>
#include <string_view>

#include "csrc/base/error.h"
#include "csrc/iree/capi.h"

namespace pyvlm {

inline iree_string_view_t StringView(std::string_view text) { return {text.data(), text.size()}; }

inline iree_status_code_t StatusCode(iree_status_t status) {
  return static_cast<iree_status_code_t>(reinterpret_cast<uintptr_t>(status) &
                                         IREE_STATUS_CODE_MASK);
}

// The host allocator that every call into the runtime gets.
iree_allocator_t HostAllocator();

// Throws nothing on success. Otherwise consumes `status` and throws Error with the message
// "<action>: <first line of IREE's text>"; the code is out_of_memory for an exhausted resource,
// device_unavailable for a device that is absent or whose work was aborted (it is lost), else
// `code`, which the call site chooses.
void Check(iree_status_t status, ErrorCode code, std::string_view action);

// Makes a status for IREE, with a copy of `message`; for callbacks that IREE calls. Never throws.
iree_status_t MakeStatus(iree_status_code_t code, std::string_view message) noexcept;

}  // namespace pyvlm
