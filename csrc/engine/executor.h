#pragma once

#include <optional>
#include <vector>

#include "csrc/engine/runner.h"
#include "csrc/engine/sampler.h"
#include "csrc/engine/step_plan.h"

namespace pyvlm {

struct SampledToken {
  std::int32_t id = 0;
  std::optional<TokenLogprob> logprob = std::nullopt;  // if the sequence asked for it
};

// What became of one unit or one decode row of a plan.
struct StepEvent {
  Sequence* sequence = nullptr;
  const WorkUnit* unit = nullptr;  // into the plan; null = the sequence's decode row
  std::optional<SampledToken> token = std::nullopt;  // if logits were asked for
  std::optional<Error> error = std::nullopt;         // ends the sequence
  TimeUs elapsed_us = 0;  // runner and sampler time; for a decode row that of the batch
  TimeUs at = 0;          // when it was done
};

struct StepResult {
  std::vector<StepEvent> events;     // in order of execution
  TimeUs decode_us = 0;              // of the whole batch
  bool was_retried = false;          // the decode batch failed and was repeated row by row
  std::optional<Error> device_lost;  // execution ended there; the rest of the plan has no events
};

// Carries out a plan on a runner. Changes no sequence. Engine thread only.
// Isolation: a failed unit ends its sequence's part of the plan and nothing else. A failed decode
// of several rows is repeated row by row, so that only the rows at fault fail. Logits from which
// nothing can be drawn fail their row alone.
class Executor {
 public:
  explicit Executor(Runner& runner) : runner_(runner) {}

  // `plan` outlives the result.
  StepResult Run(const StepPlan& plan);

 private:
  void RunUnit(const WorkUnit& unit, StepResult& result);
  std::optional<SampledToken> Call(const WorkUnit& unit);
  std::optional<SampledToken> CallPrefill(const WorkUnit& unit);
  SampledToken Sample(std::span<const float> logits, const SamplerState& state);
  void RunDecode(const std::vector<Sequence*>& sequences, StepResult& result);
  void DecodeRows(const std::vector<Sequence*>& sequences, StepResult& result);

  Runner& runner_;
  Sampler sampler_;
};

// Now on the clock of all times in the engine.
TimeUs NowUs();

}  // namespace pyvlm
