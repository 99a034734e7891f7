#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "csrc/engine/sequence.h"
#include "csrc/engine/types.h"

namespace pyvlm {

// What the engine has for its host: deltas, and leases whose buffers it no longer reads.
struct Outputs {
  std::vector<TokenOutput> tokens;
  std::vector<LeaseId> released;

  bool IsEmpty() const { return tokens.empty() && released.empty(); }
};

// Everything that the engine thread shares with others: one queue each way. Pull model, so no
// foreign code ever runs on the engine thread.
// Bounds: at most max_open sequences are open, that is submitted and their last output not yet
// pulled; the outputs of a sequence are merged until pulled. A host that never pulls can therefore
// not make the engine grow.
class Mailbox {
 public:
  struct Mail {
    std::vector<std::unique_ptr<Sequence>> submitted;  // in order of arrival
    std::set<SeqId> cancelled;
    bool closed = false;
  };

  explicit Mailbox(std::size_t max_open);

  // Any thread.

  // Throws what Submit would throw now for a valid sequence. Lets a flood be turned away before
  // anything is validated.
  void CheckOpen() const;

  // Gives `sequence` the next id and queues it. Throws kQueueFull, kDraining after Close, or the
  // failure of the engine; the id is not consumed then.
  SeqId Submit(std::unique_ptr<Sequence> sequence);

  // Unknown, finished or already cancelled: no-op.
  void Cancel(SeqId seq_id);

  // Blocks until there is something to pull, for at most `timeout` (then the result is empty; at
  // once if it is negative).
  // Throws, once everything has been pulled: the failure of the engine, or kDraining if it has
  // been shut down. Several threads may wait; each output goes to one of them.
  Outputs WaitOutputs(std::chrono::microseconds timeout);

  // Asks the engine thread to stop.
  void Close();

  // Submitted, not yet taken by the engine thread.
  std::size_t num_undrained() const;

  // Engine thread.

  // Takes what has arrived; `wait`: blocks until something has.
  Mail Take(bool wait);

  // Merges `outputs` into what waits to be pulled.
  void Deliver(Outputs outputs);

  // Turns away every later Submit, with `failure` if there is one, and returns what has arrived
  // before: the engine thread is about to end, but may still deliver.
  Mail Refuse(const std::optional<Error>& failure) noexcept;

  // Nothing is delivered from now on.
  void Stop() noexcept;

 private:
  void CheckOpenLocked() const;
  [[noreturn]] void ThrowStoppedLocked() const;
  void MergeLocked(TokenOutput output);

  const std::size_t max_open_;
  mutable std::mutex mutex_;
  std::condition_variable arrived_;    // for the engine thread
  std::condition_variable delivered_;  // for waiters
  // All guarded by mutex_.
  SeqId last_id_ = 0;
  Mail inbox_;
  Outputs outbox_;
  std::unordered_map<SeqId, std::size_t> unpulled_;  // index into outbox_.tokens
  std::unordered_set<SeqId> open_;
  bool is_ending_ = false;
  bool stopped_ = false;
  std::optional<Error> failure_;  // set once
};

}  // namespace pyvlm
