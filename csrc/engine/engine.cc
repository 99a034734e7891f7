#include "csrc/engine/engine.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <utility>

#include "csrc/base/log.h"
#include "csrc/engine/admission.h"
#include "csrc/engine/philox.h"
#include "csrc/engine/prompt_work.h"

namespace pyvlm {
namespace {

constexpr const char* kName = "the engine";  // in errors

void RequireInfo(bool condition, const char* what) {
  if (!condition) throw Error(ErrorCode::kProgramMismatch, what);
}

const RunnerInfo& CheckInfo(const RunnerInfo& info) {
  RequireInfo(info.vocab_size > 0 && info.hidden_size > 0, "the model has no vocabulary");
  RequireInfo(info.num_slots > 0 && info.capacity > 0, "the model has no cache");
  RequireInfo(info.max_chunk > 0, "the model has no prefill function");
  RequireInfo(info.max_decode_batch >= info.num_slots,
              "the largest decode batch is smaller than the number of slots");
  if (info.vision) {
    RequireInfo(info.vision->num_stages > 0, "the vision encoder has no stages");
    RequireInfo(info.costs.encode_stage.size() == static_cast<std::size_t>(info.vision->num_stages),
                "the costs do not cover the stages of the vision encoder");
  }
  return info;
}

std::uint64_t RandomNonce() {
  std::random_device device;
  return (std::uint64_t{device()} << 32) | device();
}

// Checked here so that it comes before the first use of the pointer.
std::shared_ptr<Runner> CheckRunner(std::shared_ptr<Runner> runner, const EngineOptions& options) {
  if (!runner) throw Error(ErrorCode::kInvalidParameter, "an engine needs a runner", "runner");
  options.Validate();
  CheckInfo(runner->info());
  return runner;
}

std::size_t MaxOpen(const RunnerInfo& info, const EngineOptions& options) {
  return static_cast<std::size_t>(info.num_slots) + static_cast<std::size_t>(options.max_queued);
}

TimeUs DeadlineOf(const PreparedPrefill& prefill, TimeUs now) {
  constexpr double kFarAway_us = 1e15;  // 30 years
  if (!prefill.deadline_s()) return 0;
  return now + static_cast<TimeUs>(std::min(*prefill.deadline_s() * 1e6, kFarAway_us));
}

EngineStats DeadStats(const RunnerInfo& info) {
  EngineStats stats;
  stats.is_alive = false;
  stats.num_slots = info.num_slots;
  stats.capacity = info.capacity;
  stats.decode_width.resize(static_cast<std::size_t>(info.num_slots) + 1);
  return stats;
}

TokenOutput OutputOf(const Sequence& sequence) {
  TokenOutput output;
  output.seq_id = sequence.id;
  output.num_prompt_tokens = sequence.prefill->num_prompt_tokens();
  output.num_positions = sequence.prefill->num_positions();
  output.num_generated = sequence.num_generated;
  output.times = sequence.times;
  return output;
}

}  // namespace

void EngineOptions::Validate() const {
  if (!(step_budget_ms > 0.0) || !std::isfinite(step_budget_ms)) {
    throw Error(ErrorCode::kInvalidParameter, "step_budget_ms must be finite and > 0",
                "step_budget_ms");
  }
  if (max_queued < 0) {
    throw Error(ErrorCode::kInvalidParameter, "max_queued must be >= 0", "max_queued");
  }
  if (image_cache_bytes < 0) {
    throw Error(ErrorCode::kInvalidParameter, "image_cache_bytes must be >= 0, 0 = off",
                "image_cache_bytes");
  }
}

Engine::Engine(std::shared_ptr<Runner> runner, const EngineOptions& options)
    : runner_(CheckRunner(std::move(runner), options)),
      claim_(runner_),
      options_(options),
      seed_nonce_(RandomNonce()),
      internal_failure_(ErrorCode::kEngineDead, "the engine stopped because of an internal error"),
      mailbox_(MaxOpen(info(), options)),
      cache_(options.image_cache_bytes),
      scheduler_(info(), options.step_budget_ms * 1e3),
      executor_(*runner_) {
  tally_.num_slots = info().num_slots;
  tally_.capacity = info().capacity;
  tally_.decode_width.resize(static_cast<std::size_t>(info().num_slots) + 1);
  stats_ = tally_;
  thread_ = std::thread([this] { Main(); });
}

Engine::~Engine() { Shutdown(); }

SeqId Engine::Submit(std::shared_ptr<const PreparedPrefill> prefill, std::vector<LeaseId> leases) {
  mark_.Require(kName);
  if (!prefill) throw Error(ErrorCode::kInvalidParameter, "there is no prompt", "prefill");
  mailbox_.CheckOpen();
  const auto num_images = static_cast<std::size_t>(prefill->num_images());
  if (leases.empty()) leases.resize(num_images, 0);
  if (leases.size() != num_images) {
    throw Error(ErrorCode::kInvalidParameter, "one lease per image is needed", "leases");
  }
  auto sequence = std::make_unique<Sequence>();
  sequence->max_new_tokens = CheckAdmission(*prefill, info());
  const std::uint64_t seed = prefill->sampling().seed.value_or(
      static_cast<std::uint64_t>(PhiloxUniform(seed_nonce_, num_seeds_++) * 0x1.0p53));
  sequence->sampler = SamplerState(prefill->sampling(), seed, prefill->TextIds());
  sequence->prefill = std::move(prefill);
  sequence->leases = std::move(leases);
  sequence->submitted = NowUs();
  sequence->deadline = DeadlineOf(*sequence->prefill, sequence->submitted);
  return mailbox_.Submit(std::move(sequence));
}

void Engine::Cancel(SeqId seq_id) {
  if (!mark_.IsInherited()) mailbox_.Cancel(seq_id);
}

std::shared_ptr<const ImageRows> Engine::CachedImage(const std::string& key) {
  mark_.Require(kName);
  return cache_.Find(key);
}

Outputs Engine::WaitOutputs(std::chrono::microseconds timeout) {
  mark_.Require(kName);
  return mailbox_.WaitOutputs(timeout);
}

EngineStats Engine::Stats() const {
  if (mark_.IsInherited()) return DeadStats(info());
  const std::lock_guard lock(stats_mutex_);
  EngineStats stats = stats_;
  stats.num_waiting += static_cast<int>(mailbox_.num_undrained());
  stats.image_cache = cache_.stats();
  return stats;
}

void Engine::Shutdown() {
  if (mark_.IsInherited()) return;
  mailbox_.Close();
  const std::lock_guard lock(join_mutex_);
  if (thread_.joinable()) thread_.join();
  claim_.GiveBack();
}

void Engine::Loop() {
  while (Drain()) {
    const TimeUs begin = NowUs();
    const StepPlan plan = scheduler_.Schedule(begin);
    Publish();  // cancellations and admissions need not wait for the step
    const StepResult result = executor_.Run(plan);
    Apply(result);
    CountStep(result, NowUs() - begin);
    if (options_.check_invariants) scheduler_.CheckInvariants();
    Publish();
  }
}

// What stopped the loop; none if the host did.
std::optional<Error> Engine::RunLoop() noexcept {
  try {
    try {
      Loop();
      return std::nullopt;
    } catch (const Error& error) {
      return Error(ErrorCode::kEngineDead, std::string("the engine stopped: ") + error.what());
    }
  } catch (const std::exception& error) {
    LogInternal("engine", error.what());
  } catch (...) {
    LogInternal("engine", "an exception of unknown type");
  }
  return internal_failure_;
}

// Ends in one way only: whatever is live or has arrived ends with an output, every lease is given
// back, then waiters learn that there is no more.
void Engine::Main() noexcept {
  const std::optional<Error> failure = RunLoop();
  EndAll(failure);
  cache_.Close();
  mailbox_.Stop();
}

bool Engine::Drain() {
  Mailbox::Mail mail = mailbox_.Take(/*wait=*/live_.empty());
  arrived_ = std::move(mail.submitted);
  for (auto& sequence : arrived_) Accept(std::move(sequence));
  arrived_.clear();
  for (const SeqId seq_id : mail.cancelled) CancelNow(seq_id);
  ExpireDeadlines();
  return !mail.closed;
}

void Engine::Accept(std::unique_ptr<Sequence> sequence) {
  Sequence& accepted = *sequence;
  live_[accepted.id] = std::move(sequence);
  scheduler_.Add(&accepted);
  deadlines_.Add(accepted.deadline, accepted.id);
  tally_.num_leases += std::count_if(accepted.leases.begin(), accepted.leases.end(),
                                     [](LeaseId lease) { return lease != 0; });
  ++tally_.num_submitted;
  if (accepted.max_new_tokens == 0) Finish(accepted, FinishReason::length);
}

void Engine::CancelNow(SeqId seq_id) {
  const auto found = live_.find(seq_id);
  if (found != live_.end()) Finish(*found->second, FinishReason::cancelled);
}

void Engine::ExpireDeadlines() {
  if (deadlines_.IsEmpty()) return;
  const TimeUs now = NowUs();
  while (const SeqId seq_id = deadlines_.Passed(now)) {
    Fail(*live_.at(seq_id), Error(ErrorCode::kDeadline, "the deadline of the request has passed"));
  }
}

void Engine::Apply(const StepResult& result) {
  for (const StepEvent& event : result.events) ApplyEvent(event);
  if (result.device_lost) throw *result.device_lost;
}

void Engine::ApplyEvent(const StepEvent& event) {
  Sequence& sequence = *event.sequence;
  if (event.error) return Fail(sequence, *event.error);
  if (event.unit) ApplyUnit(sequence, *event.unit, event.elapsed_us);
  if (event.token) AcceptToken(sequence, *event.token, event.at);
}

void Engine::ApplyUnit(Sequence& sequence, const WorkUnit& unit, TimeUs elapsed_us) {
  Advance(unit, info(), sequence.progress);
  if (unit.kind == WorkUnit::Kind::cached_rows) return;
  if (unit.kind != WorkUnit::Kind::prefill) {
    sequence.times.encode_us += elapsed_us;
    tally_.encode_us += elapsed_us;
    ++tally_.num_encode_units;
    if (unit.kind == WorkUnit::Kind::encode && unit.completes_image) {
      KeepRows(sequence, unit.image);
      ReleaseLease(sequence, unit.image);
    }
    return;
  }
  sequence.times.prefill_us += elapsed_us;
  tally_.prefill_us += elapsed_us;
  ++tally_.num_prefill_chunks;
  tally_.num_prefill_positions += static_cast<std::uint64_t>(unit.count);
  if (unit.completes_prompt) {
    tally_.num_prompt_tokens += static_cast<std::uint64_t>(sequence.prefill->num_prompt_tokens());
  }
  FreeCachedImages(sequence);
}

// For want of memory they are not kept, and the sequence goes on.
void Engine::KeepRows(const Sequence& sequence, int image) {
  const std::string& key = sequence.prefill->images()[static_cast<std::size_t>(image)].cache_key;
  if (key.empty() || !cache_.is_on()) return;
  if (auto rows = runner_->ShareRows({sequence.id, image})) cache_.Insert(key, std::move(rows));
}

// Rows go before the lease: the runner may read a host's buffer until then.
void Engine::FreeCachedImages(Sequence& sequence) {
  for (const ImageSpan& span : sequence.prefill->image_spans()) {
    if (span.end > sequence.progress.num_cached) return;
    runner_->ReleaseRows({sequence.id, span.image});
    ReleaseLease(sequence, span.image);
  }
}

void Engine::AcceptToken(Sequence& sequence, const SampledToken& token, TimeUs at) {
  if (sequence.first_token == 0) sequence.first_token = at;
  sequence.times.decode_us = at - sequence.first_token;
  const auto& stop_ids = sequence.prefill->stop_token_ids();
  if (std::find(stop_ids.begin(), stop_ids.end(), token.id) != stop_ids.end()) {
    return Finish(sequence, FinishReason::stop);
  }
  ++sequence.num_generated;
  ++tally_.num_generated_tokens;
  sequence.last_token = token.id;
  sequence.sampler.Append(token.id);
  TokenOutput output = OutputOf(sequence);
  output.token_ids.push_back(token.id);
  if (token.logprob) output.logprobs.push_back(*token.logprob);
  if (sequence.num_generated == sequence.max_new_tokens) {
    output.finish_reason = FinishReason::length;
    return Drop(sequence, std::move(output));
  }
  pending_.tokens.push_back(std::move(output));
}

void Engine::Finish(Sequence& sequence, FinishReason reason) {
  TokenOutput last = OutputOf(sequence);
  last.finish_reason = reason;
  Drop(sequence, std::move(last));
}

void Engine::Fail(Sequence& sequence, const Error& error) {
  TokenOutput last = OutputOf(sequence);
  last.finish_reason = FinishReason::error;
  last.error_code = error.code();
  last.error_message = error.what();
  Drop(sequence, std::move(last));
}

// The one place where sequences end. `sequence` is gone afterwards.
void Engine::Drop(Sequence& sequence, TokenOutput last) {
  switch (last.finish_reason) {
    case FinishReason::stop:
      ++tally_.num_stopped;
      break;
    case FinishReason::length:
      ++tally_.num_length;
      break;
    case FinishReason::cancelled:
      ++tally_.num_cancelled;
      break;
    default:
      ++tally_.num_failed;
      break;
  }
  for (const ImageSpan& span : sequence.prefill->image_spans()) {
    runner_->ReleaseRows({sequence.id, span.image});
    ReleaseLease(sequence, span.image);
  }
  scheduler_.Remove(&sequence);
  deadlines_.Remove(sequence.deadline, sequence.id);
  pending_.tokens.push_back(std::move(last));
  live_.erase(sequence.id);
}

void Engine::ReleaseLease(Sequence& sequence, int image) {
  LeaseId& lease = sequence.leases[static_cast<std::size_t>(image)];
  if (lease == 0) return;
  pending_.released.push_back(lease);
  lease = 0;
  --tally_.num_leases;
}

void Engine::CountStep(const StepResult& result, TimeUs elapsed_us) {
  if (result.events.empty()) return;
  ++tally_.num_steps;
  tally_.max_step_us = std::max(tally_.max_step_us, elapsed_us);
  tally_.step_us.Add(elapsed_us);
  const auto width = std::count_if(result.events.begin(), result.events.end(),
                                   [](const StepEvent& event) { return event.unit == nullptr; });
  if (width > 0) ++tally_.decode_width[static_cast<std::size_t>(width)];
  tally_.decode_us += result.decode_us;
  if (result.was_retried) ++tally_.num_decode_retries;
}

// The scheduler is not asked: it may be what broke. No sequence keeps another from its end; what
// even so cannot be delivered (memory is exhausted) is covered by the failure that waiters get.
void Engine::EndAll(const std::optional<Error>& failure) noexcept {
  const auto attempt = [](auto&& work) {
    try {
      work();
    } catch (...) {
      LogInternal("engine", "an output is lost");
    }
  };
  Mailbox::Mail mail = mailbox_.Refuse(failure);
  const auto for_each = [&](auto&& work) {
    for (const auto& [id, sequence] : live_) {
      if (sequence) work(*sequence);
    }
    for (const auto* list : {&arrived_, &mail.submitted}) {
      for (const auto& sequence : *list) {
        if (sequence) work(*sequence);
      }
    }
  };
  // The numbers first: who has the last output sees them.
  for_each([&](Sequence&) { ++(failure ? tally_.num_failed : tally_.num_cancelled); });
  tally_.num_submitted += mail.submitted.size();
  tally_.is_alive = false;
  tally_.num_waiting = tally_.num_running = 0;
  tally_.num_cached = tally_.num_leases = 0;
  attempt([&] {
    const std::lock_guard lock(stats_mutex_);
    stats_ = tally_;
  });
  attempt([&] { mailbox_.Deliver(std::exchange(pending_, {})); });
  for_each([&](Sequence& sequence) { attempt([&] { End(sequence, failure); }); });
  live_.clear();
}

void Engine::End(Sequence& sequence, const std::optional<Error>& failure) {
  Outputs outputs;
  for (const ImageSpan& span : sequence.prefill->image_spans()) {
    runner_->ReleaseRows({sequence.id, span.image});
  }
  for (const LeaseId lease : sequence.leases) {
    if (lease != 0) outputs.released.push_back(lease);
  }
  TokenOutput last = OutputOf(sequence);
  last.finish_reason = failure ? FinishReason::error : FinishReason::cancelled;
  if (failure) {
    last.error_code = failure->code();
    last.error_message = failure->what();
  }
  outputs.tokens.push_back(std::move(last));
  mailbox_.Deliver(std::move(outputs));
}

// Once or twice a step: the sequences that wait, however many, cost nothing here.
void Engine::Publish() {
  tally_.num_waiting = static_cast<int>(scheduler_.waiting().size());
  tally_.num_running = static_cast<int>(scheduler_.running().size());
  tally_.num_cached = 0;
  for (const Sequence* sequence : scheduler_.running()) {
    tally_.num_cached += sequence->progress.num_cached;
    if (sequence->IsDecoding()) tally_.num_cached += sequence->num_generated - 1;
  }
  {
    const std::lock_guard lock(stats_mutex_);
    stats_ = tally_;
  }
  mailbox_.Deliver(std::exchange(pending_, {}));
}

}  // namespace pyvlm
