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

float Scaled(float logit, float max, float temperature) { return (logit - max) / temperature; }

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
  SelectMinP(logits, max, params);
  SelectTopK(params.top_k);
  SelectTopP(params.top_p);
  const auto index = static_cast<std::uint64_t>(state.num_generated());
  return DrawInIdOrder(logits, max, params.temperature, PhiloxUniform(state.seed(), index));
}

void Sampler::SelectMinP(std::span<const float> logits, float max, const SamplingParams& params) {
  const float floor =
      params.min_p > 0.0f ? std::log(params.min_p) : std::numeric_limits<float>::lowest();
  candidates_.clear();
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const float z = Scaled(logits[i], max, params.temperature);
    if (z >= floor) candidates_.push_back({z, static_cast<std::int32_t>(i)});
  }
}

void Sampler::SelectTopK(int top_k) {
  if (top_k <= 0 || static_cast<std::size_t>(top_k) >= candidates_.size()) return;
  std::nth_element(candidates_.begin(), candidates_.begin() + (top_k - 1), candidates_.end(),
                   Better);
  candidates_.resize(static_cast<std::size_t>(top_k));
}

// Bisection on mass: each round halves the range that holds the cut, so the work adds up to O(n).
void Sampler::SelectTopP(float top_p) {
  if (top_p >= 1.0f) return;
  const auto mass = [](auto first, auto last) {
    double sum = 0;
    for (; first != last; ++first) sum += std::exp(first->z);
    return sum;
  };
  auto low = candidates_.begin();
  auto high = candidates_.end();
  double wanted = static_cast<double>(top_p) * mass(low, high);
  while (high - low > 1) {
    const auto middle = low + (high - low) / 2;
    std::nth_element(low, middle, high, Better);
    const double upper = mass(low, middle);
    if (upper >= wanted) {
      high = middle;
    } else {
      wanted -= upper;
      low = middle;
    }
  }
  candidates_.erase(high, candidates_.end());
}

// The kept set is an upper set of the order Better, so its worst member describes it. Walking ids
// upwards makes the draw independent of how the selection permuted the candidates.
std::int32_t Sampler::DrawInIdOrder(std::span<const float> logits, float max, float temperature,
                                    double uniform) {
  const Candidate cut = *std::max_element(candidates_.begin(), candidates_.end(), Better);
  weighted_.clear();
  double total = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const Candidate candidate{Scaled(logits[i], max, temperature), static_cast<std::int32_t>(i)};
    if (Better(cut, candidate)) continue;
    total += std::exp(candidate.z);
    weighted_.push_back({total, candidate.id});
  }
  // uniform < 1, but the product may round up to the total.
  const double target = std::min(uniform * total, std::nextafter(total, 0.0));
  const auto drawn = std::upper_bound(
      weighted_.begin(), weighted_.end(), target,
      [](double value, const Weighted& entry) { return value < entry.cumulative; });
  return drawn->id;
}

}  // namespace pyvlm
