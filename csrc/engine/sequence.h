#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <vector>

#include "csrc/engine/prepared_prefill.h"
#include "csrc/engine/sampler.h"
#include "csrc/engine/types.h"

namespace pyvlm {

// How far the prompt of a sequence has come.
struct PromptProgress {
  int num_cached = 0;   // positions written to the slot
  int num_encoded = 0;  // leading entries of image_spans whose rows have been made
  int tile = 0;         // of the entry being encoded: the next unit
  int stage = 0;

  bool operator==(const PromptProgress&) const = default;
};

// Engine-side state of one generation. Owned by the engine; engine thread only after submit.
// waiting: has no slot. running: has a slot; its prompt is worked on until every position is
// cached, then it decodes one token a step. finished: about to be dropped.
struct Sequence {
  enum class State { waiting, running, finished };

  SeqId id = 0;
  std::shared_ptr<const PreparedPrefill> prefill;
  std::vector<LeaseId> leases;  // per image; 0 = none, or released already
  int max_new_tokens = 0;
  TimeUs submitted = 0;
  TimeUs deadline = 0;  // 0 = none

  // Scheduler.
  State state = State::waiting;
  SlotId slot = -1;
  std::list<Sequence*>::iterator queue_place;  // while waiting

  // Engine, from the results of steps.
  PromptProgress progress;
  SamplerState sampler;
  std::int32_t last_token = -1;  // sampled, not yet in the cache
  int num_generated = 0;
  TimeUs first_token = 0;
  StageTimes times;

  bool IsPromptCached() const { return progress.num_cached == prefill->num_positions(); }
  bool IsPrefilling() const { return state == State::running && !IsPromptCached(); }
  bool IsDecoding() const { return state == State::running && IsPromptCached(); }

  // Where last_token will be written. Requires IsDecoding().
  int NextPosition() const { return prefill->num_positions() + num_generated - 1; }
};

}  // namespace pyvlm
