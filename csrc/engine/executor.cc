#include "csrc/engine/executor.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <string>

#include "csrc/base/log.h"

namespace pyvlm {
namespace {

// Runs `work`; whatever it throws comes back as an Error. The text of a foreign exception is not
// made for clients.
template <typename Work>
std::optional<Error> Guard(Work&& work) {
  try {
    work();
    return std::nullopt;
  } catch (const Error& error) {
    return error;
  } catch (const std::bad_alloc&) {
    return Error(ErrorCode::kOutOfMemory, "the host is out of memory");
  } catch (const std::exception& error) {
    LogInternal("a step", error.what());
  } catch (...) {
    LogInternal("a step", "an exception of unknown type");
  }
  return Error(ErrorCode::kEngineFailed, "the step failed because of an internal error");
}

bool IsDeviceLost(const std::optional<Error>& error) {
  return error.has_value() && error->code() == ErrorCode::kDeviceUnavailable;
}

DecodeRow RowOf(const Sequence& sequence) {
  return {.slot = sequence.slot, .token = sequence.last_token, .position = sequence.NextPosition()};
}

}  // namespace

TimeUs NowUs() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Units first: the tokens of the decode step then leave at once, in the same delivery.
StepResult Executor::Run(const StepPlan& plan) {
  StepResult result;
  std::vector<const Sequence*> failed;
  for (const WorkUnit& unit : plan.units) {
    if (std::find(failed.begin(), failed.end(), unit.sequence) != failed.end()) continue;
    RunUnit(unit, result);
    if (result.device_lost) return result;
    if (result.events.back().error) failed.push_back(unit.sequence);
  }
  if (!plan.decode.empty()) {
    const TimeUs begin = NowUs();
    RunDecode(plan.decode, result);
    result.decode_us = NowUs() - begin;
  }
  return result;
}

void Executor::RunUnit(const WorkUnit& unit, StepResult& result) {
  StepEvent event{.sequence = unit.sequence, .unit = &unit};
  const TimeUs begin = NowUs();
  event.error = Guard([&] { event.token = Call(unit); });
  event.at = NowUs();
  event.elapsed_us = event.at - begin;
  if (IsDeviceLost(event.error)) {
    result.device_lost = event.error;
  } else {
    result.events.push_back(std::move(event));
  }
}

std::optional<SampledToken> Executor::Call(const WorkUnit& unit) {
  if (unit.kind == WorkUnit::Kind::prefill) return CallPrefill(unit);
  const PreparedPrefill& prefill = *unit.sequence->prefill;
  const ImageKey key{unit.sequence->id, unit.image};
  const ImageInput& input = prefill.images()[static_cast<std::size_t>(unit.image)];
  if (unit.kind != WorkUnit::Kind::encode) {
    runner_.ImportRows(key, input);
    return std::nullopt;
  }
  const auto span =
      std::find_if(prefill.image_spans().begin(), prefill.image_spans().end(),
                   [&](const ImageSpan& candidate) { return candidate.image == unit.image; });
  runner_.Encode({.key = key,
                  .input = &input,
                  .tile = unit.tile,
                  .stage = unit.stage,
                  .num_rows = span->num_rows});
  return std::nullopt;
}

std::optional<SampledToken> Executor::CallPrefill(const WorkUnit& unit) {
  const Sequence& sequence = *unit.sequence;
  const auto start = static_cast<std::size_t>(unit.start);
  const auto count = static_cast<std::size_t>(unit.count);
  PrefillCall call{.slot = sequence.slot,
                   .start = unit.start,
                   .tokens = sequence.prefill->tokens().subspan(start, count),
                   .row_index = sequence.prefill->row_index().subspan(start, count),
                   .rows = std::nullopt,
                   .wants_logits = unit.completes_prompt};
  if (unit.image >= 0) call.rows = ImageKey{sequence.id, unit.image};
  const std::span<const float> logits = runner_.Prefill(call);
  if (!unit.completes_prompt) return std::nullopt;
  if (logits.size() != static_cast<std::size_t>(runner_.info().vocab_size)) {
    throw Error(ErrorCode::kEngineFailed, "prefill gave logits of an unexpected size");
  }
  return Sample(logits, sequence.sampler);
}

SampledToken Executor::Sample(std::span<const float> logits, const SamplerState& state) {
  SampledToken token{.id = sampler_.Sample(logits, state)};
  const std::optional<int>& num_logprobs = state.params().num_logprobs;
  if (num_logprobs) token.logprob = sampler_.Logprob(logits, token.id, *num_logprobs);
  return token;
}

void Executor::RunDecode(const std::vector<Sequence*>& sequences, StepResult& result) {
  StepResult batch;
  const std::optional<Error> error = Guard([&] { DecodeRows(sequences, batch); });
  if (!error) {
    result.events.insert(result.events.end(), batch.events.begin(), batch.events.end());
    return;
  }
  if (IsDeviceLost(error)) {
    result.device_lost = error;
    return;
  }
  if (sequences.size() == 1) {
    result.events.push_back(
        {.sequence = sequences.front(), .error = error, .elapsed_us = 0, .at = NowUs()});
    return;
  }
  result.was_retried = true;
  for (Sequence* sequence : sequences) {
    RunDecode({sequence}, result);
    if (result.device_lost) return;
  }
}

void Executor::DecodeRows(const std::vector<Sequence*>& sequences, StepResult& result) {
  std::vector<DecodeRow> rows;
  for (const Sequence* sequence : sequences) rows.push_back(RowOf(*sequence));
  const TimeUs begin = NowUs();
  const std::span<const float> logits = runner_.Decode(rows);
  const auto vocab_size = static_cast<std::size_t>(runner_.info().vocab_size);
  if (logits.size() != rows.size() * vocab_size) {
    throw Error(ErrorCode::kEngineFailed, "decode gave logits of an unexpected size");
  }
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    StepEvent event{.sequence = sequences[i]};
    event.error = Guard([&] {
      event.token = Sample(logits.subspan(i * vocab_size, vocab_size), sequences[i]->sampler);
    });
    event.at = NowUs();
    event.elapsed_us = event.at - begin;
    result.events.push_back(std::move(event));
  }
}

}  // namespace pyvlm
