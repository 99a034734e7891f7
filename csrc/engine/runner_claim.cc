#include "csrc/engine/runner_claim.h"

#include <utility>

namespace pyvlm {

RunnerClaim::RunnerClaim(std::shared_ptr<Runner> runner) : runner_(std::move(runner)) {
  if (!runner_) throw Error(ErrorCode::kInvalidParameter, "there is no runner", "runner");
  if (runner_->is_claimed_.exchange(true)) {
    throw Error(ErrorCode::kInvalidParameter,
                "the runner serves another engine, or another runner, already", "runner");
  }
}

void RunnerClaim::GiveBack() noexcept {
  if (std::exchange(is_held_, false)) runner_->is_claimed_ = false;
}

}  // namespace pyvlm
