#include "csrc/engine/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "csrc/base/error.h"
#include "csrc/engine/philox.h"

namespace pyvlm {
namespace {

// Integers in the order of the floats, with +0 for -0: reductions over them are vectorised. A NaN
// lands above +infinity or below -infinity, by its sign.
std::int32_t OrderedKey(float value) {
  const auto bits = std::bit_cast<std::int32_t>(value + 0.0f);
  return bits ^ ((bits >> 31) & 0x7fffffff);
}

// The smallest index of the largest logit. Throws kEngineFailed as Sample does.
std::size_t CheckedArgmax(std::span<const float> logits) {
  const std::int32_t minus_infinity = OrderedKey(-std::numeric_limits<float>::infinity());
  const std::int32_t infinity = OrderedKey(std::numeric_limits<float>::infinity());
  std::int32_t low = infinity;
  std::int32_t high = std::numeric_limits<std::int32_t>::min();
  for (const float logit : logits) {
    const std::int32_t key = OrderedKey(logit);
    low = std::min(low, key);
    high = std::max(high, key);
  }
  if (low < minus_infinity || high >= infinity) {
    throw Error(ErrorCode::kEngineFailed, "the model gave logits that are NaN or infinite");
  }
  if (high <= minus_infinity) {
    throw Error(ErrorCode::kEngineFailed, "the model gave no logit above -infinity");
  }
  const auto first = std::find_if(logits.begin(), logits.end(),
                                  [&](float logit) { return OrderedKey(logit) == high; });
  return static_cast<std::size_t>(first - logits.begin());
}

}  // namespace

SamplerState::SamplerState(const SamplingParams& params, std::uint64_t seed,
                           std::span<const std::int32_t> prompt_ids)
    : params_(params), seed_(seed) {
  tracks_history_ = params.repetition_penalty != 1.0f || params.presence_penalty != 0.0f ||
                    params.frequency_penalty != 0.0f;
  if (!tracks_history_) return;
  for (const std::int32_t id : prompt_ids) history_.try_emplace(id, 0);
}

void SamplerState::Append(std::int32_t token) {
  ++num_generated_;
  if (tracks_history_) ++history_[token];
}

std::int32_t Sampler::Sample(std::span<const float> logits, const SamplerState& state) {
  const std::span<const float> adjusted = state.NeedsAdjustment() ? Adjust(logits, state) : logits;
  const std::size_t best = CheckedArgmax(adjusted);
  if (state.params().temperature == 0.0f) return static_cast<std::int32_t>(best);
  return Draw(adjusted, adjusted[best], state);
}

TokenLogprob Sampler::Logprob(std::span<const float> logits, std::int32_t token, int num_top) {
  const auto max = static_cast<double>(*std::max_element(logits.begin(), logits.end()));
  double total = 0;
  for (const float logit : logits) total += std::exp(static_cast<double>(logit) - max);
  const double log_total = std::log(total);
  const auto logprob = [&](std::int32_t id) {
    return static_cast<double>(logits[static_cast<std::size_t>(id)]) - max - log_total;
  };
  TokenLogprob result{.token_id = token, .logprob = logprob(token), .top = {}};
  FindTopIds(logits, std::min(static_cast<std::size_t>(num_top), logits.size()));
  for (const std::int32_t id : top_ids_) result.top.emplace_back(id, logprob(id));
  return result;
}

// A sorted list of the best so far: nearly every logit costs one comparison with its last.
void Sampler::FindTopIds(std::span<const float> logits, std::size_t count) {
  const auto value = [&](std::int32_t id) { return logits[static_cast<std::size_t>(id)]; };
  top_ids_.clear();
  if (count == 0) return;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (top_ids_.size() == count) {
      if (logits[i] <= value(top_ids_.back())) continue;  // of equals the smaller id stays
      top_ids_.pop_back();
    }
    const auto place =
        std::upper_bound(top_ids_.begin(), top_ids_.end(), logits[i],
                         [&](float logit, std::int32_t id) { return logit > value(id); });
    top_ids_.insert(place, static_cast<std::int32_t>(i));
  }
}

std::span<const float> Sampler::Adjust(std::span<const float> logits, const SamplerState& state) {
  const SamplingParams& params = state.params();
  adjusted_.assign(logits.begin(), logits.end());
  for (const auto& [id, bias] : params.logit_bias) adjusted_[static_cast<std::size_t>(id)] += bias;
  for (const auto& [id, count] : state.history()) {
    float& logit = adjusted_[static_cast<std::size_t>(id)];
    logit = logit > 0.0f ? logit / params.repetition_penalty : logit * params.repetition_penalty;
    if (count == 0) continue;
    logit -= params.frequency_penalty * static_cast<float>(count) + params.presence_penalty;
  }
  return adjusted_;
}

std::int32_t Sampler::Draw(std::span<const float> logits, float max, const SamplerState& state) {
  const SamplingParams& params = state.params();
  scaled_.resize(logits.size());
  for (std::size_t i = 0; i < logits.size(); ++i) {
    scaled_[i] = (logits[i] - max) / params.temperature;
  }
  const Candidate worst = FindWorst(params);
  const auto index = static_cast<std::uint64_t>(state.num_generated());
  return DrawInIdOrder(worst, PhiloxUniform(state.seed(), index));
}

Sampler::Candidate Sampler::FindWorst(const SamplingParams& params) {
  // Any finite value without min_p; what -infinity masks is never kept.
  const float floor =
      params.min_p > 0.0f ? std::log(params.min_p) : std::numeric_limits<float>::lowest();
  if (params.top_k <= 0 && params.top_p >= 1.0f) {
    return {floor, 0.0f, std::numeric_limits<std::int32_t>::max()};
  }
  candidates_.clear();
  for (std::size_t i = 0; i < scaled_.size(); ++i) {
    if (scaled_[i] >= floor) {
      candidates_.push_back({scaled_[i], 0.0f, static_cast<std::int32_t>(i)});
    }
  }
  if (params.top_k > 0) SelectTopK(static_cast<std::size_t>(params.top_k));
  if (params.top_p < 1.0f) SelectTopP(static_cast<double>(params.top_p));
  return *std::max_element(candidates_.begin(), candidates_.end(), Better);
}

// A heap of k for the usual small k: nearly every candidate costs one comparison with its worst.
void Sampler::SelectTopK(std::size_t top_k) {
  if (top_k >= candidates_.size()) return;
  const auto first = candidates_.begin();
  const auto last = first + static_cast<std::ptrdiff_t>(top_k);
  if (top_k < candidates_.size() / 16) {
    std::partial_sort(first, last, candidates_.end(), Better);
  } else {
    std::nth_element(first, last - 1, candidates_.end(), Better);
  }
  candidates_.erase(last, candidates_.end());
}

// First goes what cannot belong to the prefix: candidates below an n-th of the share that may be
// dropped; together they weigh less than that share. Then bisection on weight: each round halves
// the range that holds the end of the prefix, so the work adds up to O(n).
void Sampler::SelectTopP(double top_p) {
  double total = 0;
  for (Candidate& candidate : candidates_) {
    candidate.weight = std::exp(candidate.z);
    total += static_cast<double>(candidate.weight);
  }
  const double least = (1.0 - top_p) * total / static_cast<double>(candidates_.size());
  std::erase_if(candidates_, [&](const Candidate& candidate) {
    return static_cast<double>(candidate.weight) < least;
  });
  auto low = candidates_.begin();
  auto high = candidates_.end();
  double wanted = top_p * total;
  while (high - low > 1) {
    const auto middle = low + (high - low) / 2;
    std::nth_element(low, middle, high, Better);
    double upper = 0;
    for (auto entry = low; entry != middle; ++entry) upper += static_cast<double>(entry->weight);
    if (upper >= wanted) {
      high = middle;
    } else {
      wanted -= upper;
      low = middle;
    }
  }
  candidates_.erase(high, candidates_.end());
}

// What is kept is everything from the best to `worst` in the order Better. Walking ids upwards
// makes the draw independent of how the selection permuted the candidates.
std::int32_t Sampler::DrawInIdOrder(const Candidate& worst, double uniform) {
  cumulative_.clear();
  double total = 0;
  for (std::size_t i = 0; i < scaled_.size(); ++i) {
    const auto id = static_cast<std::int32_t>(i);
    if (Better(worst, {scaled_[i], 0.0f, id})) continue;
    total += static_cast<double>(std::exp(scaled_[i]));
    cumulative_.push_back({total, id});
  }
  // uniform < 1, but the product may round up to the total.
  const double target = std::min(uniform * total, std::nextafter(total, 0.0));
  const auto drawn =
      std::upper_bound(cumulative_.begin(), cumulative_.end(), target,
                       [](double value, const Cumulative& entry) { return value < entry.weight; });
  return drawn->id;
}

}  // namespace pyvlm
