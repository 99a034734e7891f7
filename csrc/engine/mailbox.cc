#include "csrc/engine/mailbox.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

namespace pyvlm {
namespace {

// Keeps deadlines far from the end of the clock.
constexpr std::chrono::microseconds kLongestWait = std::chrono::hours(24);

}  // namespace

Mailbox::Mailbox(std::size_t max_open) : max_open_(max_open) {}

void Mailbox::CheckOpen() const {
  const std::lock_guard lock(mutex_);
  CheckOpenLocked();
}

void Mailbox::CheckOpenLocked() const {
  if (inbox_.closed) ThrowStoppedLocked();
  if (open_.size() >= max_open_) {
    throw Error(ErrorCode::kQueueFull, "the engine holds " + std::to_string(open_.size()) +
                                           " unfinished sequences, its limit");
  }
}

// A new object each time: threads must not share one exception.
void Mailbox::ThrowStoppedLocked() const {
  if (failure_) throw Error(failure_->code(), std::string(failure_->what()), failure_->param());
  throw Error(ErrorCode::kDraining, "the engine has been shut down");
}

SeqId Mailbox::Submit(std::unique_ptr<Sequence> sequence) {
  const std::lock_guard lock(mutex_);
  CheckOpenLocked();
  const SeqId id = last_id_ + 1;
  sequence->id = id;
  open_.insert(id);
  inbox_.submitted.push_back(std::move(sequence));
  last_id_ = id;
  arrived_.notify_one();
  return id;
}

void Mailbox::Cancel(SeqId seq_id) {
  const std::lock_guard lock(mutex_);
  if (!open_.contains(seq_id)) return;
  if (!inbox_.cancelled.insert(seq_id).second) return;
  arrived_.notify_one();
}

Outputs Mailbox::WaitOutputs(std::chrono::microseconds timeout) {
  std::unique_lock lock(mutex_);
  const auto deadline = std::chrono::steady_clock::now() +
                        std::clamp(timeout, std::chrono::microseconds::zero(), kLongestWait);
  delivered_.wait_until(lock, deadline, [&] { return !outbox_.IsEmpty() || stopped_; });
  // The last outputs are being delivered, or have been: the engine thread waits for nobody now, and
  // whoever has pulled them must not find an empty result.
  if (outbox_.IsEmpty() && is_ending_) {
    delivered_.wait(lock, [&] { return !outbox_.IsEmpty() || stopped_; });
  }
  if (outbox_.IsEmpty() && stopped_) ThrowStoppedLocked();
  for (const TokenOutput& output : outbox_.tokens) {
    if (output.finish_reason != FinishReason::none) open_.erase(output.seq_id);
  }
  unpulled_ = {};  // clear() would keep, and clear each time, the buckets of the largest batch ever
  return std::exchange(outbox_, {});
}

void Mailbox::Close() {
  const std::lock_guard lock(mutex_);
  inbox_.closed = true;
  arrived_.notify_one();
}

std::size_t Mailbox::num_undrained() const {
  const std::lock_guard lock(mutex_);
  return inbox_.submitted.size();
}

Mailbox::Mail Mailbox::Take(bool wait) {
  std::unique_lock lock(mutex_);
  if (wait) {
    arrived_.wait(lock, [&] {
      return inbox_.closed || !inbox_.submitted.empty() || !inbox_.cancelled.empty();
    });
  }
  Mail mail = std::exchange(inbox_, {});
  inbox_.closed = mail.closed;
  return mail;
}

void Mailbox::Deliver(Outputs outputs) {
  if (outputs.IsEmpty()) return;
  const std::lock_guard lock(mutex_);
  for (TokenOutput& output : outputs.tokens) MergeLocked(std::move(output));
  outbox_.released.insert(outbox_.released.end(), outputs.released.begin(), outputs.released.end());
  delivered_.notify_all();
}

void Mailbox::MergeLocked(TokenOutput output) {
  const auto [entry, is_new] = unpulled_.try_emplace(output.seq_id, outbox_.tokens.size());
  if (is_new) {
    outbox_.tokens.push_back(std::move(output));
    return;
  }
  TokenOutput& unpulled = outbox_.tokens[entry->second];
  std::vector<std::int32_t> ids = std::move(unpulled.token_ids);
  ids.insert(ids.end(), output.token_ids.begin(), output.token_ids.end());
  std::vector<TokenLogprob> logprobs = std::move(unpulled.logprobs);
  std::move(output.logprobs.begin(), output.logprobs.end(), std::back_inserter(logprobs));
  unpulled = std::move(output);
  unpulled.token_ids = std::move(ids);
  unpulled.logprobs = std::move(logprobs);
}

// `failure` has no param: its copy shares the message and allocates nothing.
Mailbox::Mail Mailbox::Refuse(const std::optional<Error>& failure) noexcept {
  const std::lock_guard lock(mutex_);
  failure_ = failure;
  is_ending_ = true;
  Mail mail = std::exchange(inbox_, {});
  inbox_.closed = true;
  return mail;
}

void Mailbox::Stop() noexcept {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  delivered_.notify_all();
}

}  // namespace pyvlm
