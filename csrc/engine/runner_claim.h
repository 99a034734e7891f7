#pragma once

#include <memory>

#include "csrc/engine/runner.h"

namespace pyvlm {

// The right to call a runner, which has one cache and one set of slots: an engine takes it, or a
// runner that stands between. Whoever has it may use the runner while it lives. Any thread.
class RunnerClaim {
 public:
  // Throws kInvalidParameter if there is no runner or another claim on it.
  explicit RunnerClaim(std::shared_ptr<Runner> runner);
  ~RunnerClaim() { GiveBack(); }
  RunnerClaim(const RunnerClaim&) = delete;
  RunnerClaim& operator=(const RunnerClaim&) = delete;

  // Idempotent. The runner is not called any more, its info may still be read.
  void GiveBack() noexcept;

 private:
  const std::shared_ptr<Runner> runner_;
  bool is_held_ = true;
};

}  // namespace pyvlm
