#include "csrc/engine/sampling_params.h"

#include <cmath>
#include <string>
#include <unordered_set>

#include "csrc/base/error.h"

namespace pyvlm {
namespace {

[[noreturn]] void Reject(const char* name, const std::string& rule, double value) {
  throw Error(ErrorCode::kInvalidParameter,
              std::string(name) + " must be " + rule + ", got " + std::to_string(value), name);
}

// NaN fails every range.
void CheckRange(const char* name, float value, float low, float high, const char* rule) {
  if (!(value >= low && value <= high)) Reject(name, rule, value);
}

void CheckLogitBias(const std::vector<std::pair<std::int32_t, float>>& logit_bias) {
  std::unordered_set<std::int32_t> seen;
  for (const auto& [id, bias] : logit_bias) {
    if (id < 0) Reject("logit_bias", "given for token ids >= 0", id);
    if (!seen.insert(id).second) Reject("logit_bias", "given once per token id", id);
    CheckRange("logit_bias", bias, -100.0f, 100.0f, "in [-100, 100]");
  }
}

}  // namespace

void SamplingParams::Validate() const {
  if (!(temperature >= 0.0f) || !std::isfinite(temperature)) {
    Reject("temperature", "finite and >= 0", temperature);
  }
  if (top_k < -1) Reject("top_k", "-1 or 0 (off) or positive", top_k);
  if (!(top_p > 0.0f && top_p <= 1.0f)) Reject("top_p", "in (0, 1]", top_p);
  CheckRange("min_p", min_p, 0.0f, 1.0f, "in [0, 1]");
  if (!(repetition_penalty > 0.0f) || !std::isfinite(repetition_penalty)) {
    Reject("repetition_penalty", "finite and > 0", repetition_penalty);
  }
  CheckRange("presence_penalty", presence_penalty, -2.0f, 2.0f, "in [-2, 2]");
  CheckRange("frequency_penalty", frequency_penalty, -2.0f, 2.0f, "in [-2, 2]");
  CheckLogitBias(logit_bias);
  if (num_logprobs && (*num_logprobs < 0 || *num_logprobs > kMaxLogprobs)) {
    Reject("num_logprobs", "0 to " + std::to_string(kMaxLogprobs), *num_logprobs);
  }
}

}  // namespace pyvlm
