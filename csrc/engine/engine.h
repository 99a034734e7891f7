#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "csrc/base/process_mark.h"
#include "csrc/engine/deadlines.h"
#include "csrc/engine/executor.h"
#include "csrc/engine/mailbox.h"
#include "csrc/engine/row_cache.h"
#include "csrc/engine/runner.h"
#include "csrc/engine/runner_claim.h"
#include "csrc/engine/scheduler.h"
#include "csrc/engine/stats.h"

namespace pyvlm {

struct EngineOptions {
  double step_budget_ms = 100.0;       // longest prompt work between two decode steps, scheduler.h
  int max_queued = 256;                // unfinished sequences beyond the number of slots
  bool check_invariants = false;       // after every step; a broken one stops the engine
  std::int64_t image_cache_bytes = 0;  // device memory for rows of images, row_cache.h; 0 = off

  // Throws kInvalidParameter.
  void Validate() const;
};

// Runs generations on one thread of its own: drain the inbox, schedule, run, apply. It owns every
// sequence and slot; nothing of it is ever executed on, or waits for, a host's thread.
//
// Ownership of images: from Submit on the engine reads the buffers behind the images of a prefill;
// it reports each lease in Outputs::released exactly once, when the image is consumed (pixels:
// encoded; embeddings: cached) or the sequence has ended, and reads the buffer no more.
//
// Images with a cache_key: their rows are kept in the cache once encoded. The host asks for them by
// CachedImage before it prepares the image. An image is encoded whenever its pixels are submitted.
//
// Failure: an error ends the sequence at fault, with finish_reason error. A lost device (or a bug,
// caught) stops the engine: all sequences end with kEngineDead, and once those outputs are pulled,
// Submit and WaitOutputs throw that same error for ever. The text of an exception that is no Error
// goes to the log, not to clients.
//
// Fork: in a child of the process that made it, the engine says that it is dead, and must not be
// destroyed (MakeSharedUnlessForked).
class Engine {
 public:
  // Starts the thread. Throws kProgramMismatch if the runner's info contradicts itself,
  // kInvalidParameter if it serves another engine that has not been shut down.
  Engine(std::shared_ptr<Runner> runner, const EngineOptions& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // All of these: any thread.

  // Queues a generation. `leases`: one per image, chosen by the host, 0 for those that borrow
  // nothing (cached rows); or empty if the host does not care. Throws what CheckAdmission throws,
  // kQueueFull, kDraining, kEngineDead; then no id is used up, no lease taken and nothing queued.
  SeqId Submit(std::shared_ptr<const PreparedPrefill> prefill, std::vector<LeaseId> leases = {});

  // Ends a sequence within one step; its last output says cancelled, unless it finished before.
  // Idempotent; unknown ids are ignored. Never throws.
  void Cancel(SeqId seq_id);

  // The rows that an image with this key gave; null if the cache has them not, or no more. Counts a
  // hit or a miss. They may be submitted at any later time, to any engine on the same model.
  std::shared_ptr<const ImageRows> CachedImage(const std::string& key);

  // See Mailbox::WaitOutputs.
  Outputs WaitOutputs(std::chrono::microseconds timeout);

  // Works after Shutdown, after a failure and after a fork.
  EngineStats Stats() const;

  // Ends every sequence as cancelled and joins the thread, after the step in flight. Their outputs
  // can still be pulled. Idempotent.
  void Shutdown();

  const RunnerInfo& info() const { return runner_->info(); }

 private:
  // Engine thread.
  void Main() noexcept;
  std::optional<Error> RunLoop() noexcept;
  void Loop();
  bool Drain();
  void Accept(std::unique_ptr<Sequence> sequence);
  void CancelNow(SeqId seq_id);
  void ExpireDeadlines();
  void Apply(const StepResult& result);
  void ApplyEvent(const StepEvent& event);
  void ApplyUnit(Sequence& sequence, const WorkUnit& unit, TimeUs elapsed_us);
  void KeepRows(const Sequence& sequence, int image);
  void FreeCachedImages(Sequence& sequence);
  void AcceptToken(Sequence& sequence, const SampledToken& token, TimeUs at);
  void Finish(Sequence& sequence, FinishReason reason);
  void Fail(Sequence& sequence, const Error& error);
  void Drop(Sequence& sequence, TokenOutput last);
  void ReleaseLease(Sequence& sequence, int image);
  void CountStep(const StepResult& result, TimeUs elapsed_us);
  void EndAll(const std::optional<Error>& failure) noexcept;
  void End(Sequence& sequence, const std::optional<Error>& failure);
  void Publish();

  const ProcessMark mark_;
  const std::shared_ptr<Runner> runner_;
  RunnerClaim claim_;  // until the thread has ended
  const EngineOptions options_;
  const std::uint64_t seed_nonce_;
  std::atomic<std::uint64_t> num_seeds_{0};
  const Error internal_failure_;  // made in advance: it may be needed when memory is exhausted
  Mailbox mailbox_;
  RowCache cache_;

  // Engine thread only.
  Scheduler scheduler_;
  Executor executor_;
  std::vector<std::unique_ptr<Sequence>> arrived_;  // taken from the mailbox, not yet in live_
  std::unordered_map<SeqId, std::unique_ptr<Sequence>> live_;
  Deadlines deadlines_;  // of those in live_
  Outputs pending_;      // of this step
  EngineStats tally_;    // counters, and the leases; Publish fills in the other gauges

  mutable std::mutex stats_mutex_;
  EngineStats stats_;  // guarded by stats_mutex_

  std::mutex join_mutex_;  // held while joining
  std::thread thread_;     // last: starts when all else is ready
};

}  // namespace pyvlm
