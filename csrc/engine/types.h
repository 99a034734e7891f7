#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "csrc/base/error.h"

namespace pyvlm {

using SeqId = std::uint64_t;    // one generation; from 1, never reused by an engine
using LeaseId = std::uint64_t;  // the host's name for a buffer that the engine borrows
using SlotId = std::int32_t;    // row of the KV cache
using TimeUs = std::int64_t;    // steady clock, microseconds

enum class FinishReason { none, stop, length, cancelled, error };

enum class DType { f32, f16 };

// Time that a sequence spent in each stage, so far. The stages of one sequence do not overlap.
struct StageTimes {
  TimeUs queue_us = 0;    // from submit to its slot
  TimeUs encode_us = 0;   // runner time for its images
  TimeUs prefill_us = 0;  // runner time for its chunks
  TimeUs decode_us = 0;   // from its first token to its last
};

// The likelihood of a generated token under the model alone: log-softmax of the raw logits, before
// bias, penalties and temperature; -infinity where a logit is.
struct TokenLogprob {
  std::int32_t token_id = 0;
  double logprob = 0;
  std::vector<std::pair<std::int32_t, double>> top;  // likeliest first; of equals the smaller id
};

// What a sequence produced since it was last pulled. The last output of a sequence, and no other,
// has a finish_reason. End-of-sequence ids appear nowhere in it.
struct TokenOutput {
  SeqId seq_id = 0;
  std::vector<std::int32_t> token_ids;
  std::vector<TokenLogprob> logprobs;  // one per token id; empty unless num_logprobs is set
  FinishReason finish_reason = FinishReason::none;
  ErrorCode error_code = ErrorCode::kEngineFailed;  // if finish_reason == error
  std::string error_message;                        // if finish_reason == error
  int num_prompt_tokens = 0;                        // logical ids
  int num_positions = 0;                            // positions that the prompt takes in the cache
  int num_generated = 0;                            // over the whole sequence so far
  StageTimes times;
};

}  // namespace pyvlm
