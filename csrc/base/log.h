#pragma once

namespace pyvlm {

// One line on stderr about a bug: what a client must not see, but whoever runs the program should.
// Any thread.
void LogInternal(const char* where, const char* what) noexcept;

}  // namespace pyvlm
