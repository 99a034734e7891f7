#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "csrc/engine/sampling_params.h"
#include "csrc/engine/types.h"

namespace pyvlm {

// What sampling knows of one sequence: its parameters, its seed and the ids that penalties see.
// Engine thread only once the sequence runs.
class SamplerState {
 public:
  SamplerState() = default;

  // `prompt_ids`: the logical ids without image placeholders. `params` is validated.
  SamplerState(const SamplingParams& params, std::uint64_t seed,
               std::span<const std::int32_t> prompt_ids);

  // Adds a generated id to the history. Ids that end the sequence are not added.
  void Append(std::int32_t token);

  const SamplingParams& params() const { return params_; }
  std::uint64_t seed() const { return seed_; }
  int num_generated() const { return num_generated_; }
  bool NeedsAdjustment() const { return tracks_history_ || !params_.logit_bias.empty(); }

  // How often each id of the history was generated; 0 for ids that only the prompt holds.
  const std::unordered_map<std::int32_t, int>& history() const { return history_; }

 private:
  SamplingParams params_;
  std::uint64_t seed_ = 0;
  int num_generated_ = 0;
  bool tracks_history_ = false;
  std::unordered_map<std::int32_t, int> history_;
};

// Draws the next token from the logits of one row. The operations, in the order of vLLM:
//   1. logit_bias is added.
//   2. repetition_penalty r, for every id of prompt or generation: l > 0 ? l / r : l * r  (HF).
//   3. frequency_penalty * count and presence_penalty are subtracted, count = times that the id
//      was generated (OpenAI, vLLM: the prompt does not count).
//   4. temperature 0: the largest logit. Else logits are divided by temperature, and
//   5. min_p keeps ids with p >= min_p * max p,
//   6. top_k keeps the k likeliest of them,
//   7. top_p keeps the shortest prefix of them, likeliest first, whose share of their sum reaches
//      top_p,
//   8. one is drawn in proportion to p.
// Ties are broken by the smaller id everywhere. The random number of token n is Philox(seed, n),
// so the outcome is a function of (logits, state) and nothing else.
// Nearly O(vocab_size): 6 and 7 select partially, the vocabulary is never sorted.
// Holds scratch memory: one thread at a time.
class Sampler {
 public:
  // Throws kEngineFailed if a logit (after step 3) is NaN or +infinity, or if all are -infinity.
  // Reads `logits` only.
  std::int32_t Sample(std::span<const float> logits, const SamplerState& state);

  // Of the same raw logits and a token drawn from them, so the largest is finite and none is NaN.
  // `num_top` entries, or as many as there are logits.
  TokenLogprob Logprob(std::span<const float> logits, std::int32_t token, int num_top);

 private:
  struct Candidate {
    float z;       // (logit - max) / temperature, <= 0
    float weight;  // exp(z), where it is needed
    std::int32_t id;
  };
  struct Cumulative {
    double weight;  // of this id and all kept before it
    std::int32_t id;
  };

  static bool Better(const Candidate& a, const Candidate& b) {
    return a.z != b.z ? a.z > b.z : a.id < b.id;
  }

  std::span<const float> Adjust(std::span<const float> logits, const SamplerState& state);
  std::int32_t Draw(std::span<const float> logits, float max, const SamplerState& state);
  void FindTopIds(std::span<const float> logits, std::size_t count);
  // The worst candidate that min_p, top_k and top_p keep.
  Candidate FindWorst(const SamplingParams& params);
  void SelectTopK(std::size_t top_k);
  void SelectTopP(double top_p);
  std::int32_t DrawInIdOrder(const Candidate& worst, double uniform);

  std::vector<float> adjusted_;
  std::vector<float> scaled_;  // z of every id
  std::vector<Candidate> candidates_;
  std::vector<std::int32_t> top_ids_;
  std::vector<Cumulative> cumulative_;
};

}  // namespace pyvlm
