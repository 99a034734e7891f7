#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace pyvlm {

// How the next token is drawn from logits; sampler.h states the order of the operations.
// The defaults are neutral: greedy, nothing penalised.
struct SamplingParams {
  float temperature = 0.0f;         // 0 = greedy
  int top_k = 0;                    // 0 or -1 = off
  float top_p = 1.0f;               // (0, 1]
  float min_p = 0.0f;               // [0, 1], relative to the likeliest token
  float repetition_penalty = 1.0f;  // > 0
  float presence_penalty = 0.0f;    // [-2, 2]
  float frequency_penalty = 0.0f;   // [-2, 2]
  std::vector<std::pair<std::int32_t, float>> logit_bias = {};  // ids differ, [-100, 100]
  std::optional<std::uint64_t> seed = std::nullopt;             // none = chosen by the engine

  // Likeliest tokens to report with each one that is generated, 0 = itself alone; none = no report.
  std::optional<int> num_logprobs = std::nullopt;

  static constexpr int kMaxLogprobs = 20;

  // Throws kInvalidParameter naming the field at fault. Needs no model, so ids are only checked
  // to be >= 0 and distinct.
  void Validate() const;
};

}  // namespace pyvlm
