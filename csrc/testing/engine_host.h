#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "csrc/engine/engine.h"

namespace pyvlm {

// A host of an engine for tests: submits with leases of its own, pulls everything, and keeps what
// it got by sequence.
class EngineHost {
 public:
  struct Received {
    std::vector<std::int32_t> token_ids;
    TokenOutput last;  // the most recent output
    int num_finishes = 0;
  };

  explicit EngineHost(std::shared_ptr<Runner> runner, EngineOptions options = CheckedOptions());

  static EngineOptions CheckedOptions() { return {.check_invariants = true}; }

  SeqId Submit(const std::shared_ptr<const PreparedPrefill>& prefill);

  // Pulls until `seq_id` has its last output, for a minute at most; throws if that does not come.
  const Received& Finish(SeqId seq_id);
  void FinishAll();
  // Pulls until `seq_id` has generated `num_tokens` or has finished.
  const Received& Generate(SeqId seq_id, int num_tokens);

  // Leases given to the engine and not yet back.
  std::size_t num_leases() const { return leases_.size(); }
  bool was_lease_released_twice() const { return was_released_twice_; }

  Engine& engine() { return *engine_; }

 private:
  void Pull();

  std::map<SeqId, Received> received_;
  std::set<LeaseId> leases_;
  LeaseId last_lease_ = 0;
  bool was_released_twice_ = false;
  std::unique_ptr<Engine> engine_;
};

}  // namespace pyvlm
