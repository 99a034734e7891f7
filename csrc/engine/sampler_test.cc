#include "csrc/engine/sampler.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/engine/philox.h"

namespace pyvlm {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<float> RandomLogits(std::size_t size, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, 3.0f);
  std::vector<float> logits(size);
  for (float& logit : logits) logit = std::round(normal(random) * 8.0f) / 8.0f;  // with ties
  return logits;
}

// The kept ids by the book: everything sorted, then cut by min_p, top_k and top_p in that order.
std::map<std::int32_t, double> BruteForce(const std::vector<float>& logits,
                                          const SamplingParams& params) {
  std::vector<std::pair<double, std::int32_t>> sorted;
  const float max = *std::max_element(logits.begin(), logits.end());
  for (std::size_t i = 0; i < logits.size(); ++i) {
    sorted.emplace_back(std::exp((logits[i] - max) / params.temperature),
                        static_cast<std::int32_t>(i));
  }
  std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first > b.first : a.second < b.second;
  });
  std::erase_if(sorted, [&](const auto& entry) {
    return entry.first < static_cast<double>(params.min_p) * (1 - 1e-6);
  });
  if (params.top_k > 0 && sorted.size() > static_cast<std::size_t>(params.top_k)) {
    sorted.resize(static_cast<std::size_t>(params.top_k));
  }
  double total = 0;
  for (const auto& entry : sorted) total += entry.first;
  std::map<std::int32_t, double> kept;
  double mass = 0;
  for (const auto& [p, id] : sorted) {
    if (mass >= static_cast<double>(params.top_p) * total) break;
    kept[id] = p;
    mass += p;
  }
  for (auto& [id, p] : kept) p /= mass;
  return kept;
}

// Draws for many seeds and compares the frequencies by a chi-square statistic.
void CheckDistribution(const std::vector<float>& logits, const SamplingParams& params) {
  const auto expected = BruteForce(logits, params);
  constexpr int kDraws = 20000;
  std::map<std::int32_t, int> counts;
  Sampler sampler;
  for (int seed = 0; seed < kDraws; ++seed) {
    const SamplerState state(params, static_cast<std::uint64_t>(seed), {});
    ++counts[sampler.Sample(logits, state)];
  }
  double chi_square = 0;
  for (const auto& [id, p] : expected) {
    const double mean = p * kDraws;
    chi_square += (counts[id] - mean) * (counts[id] - mean) / mean;
  }
  for (const auto& [id, count] : counts) CHECK(expected.contains(id));
  const auto freedom = static_cast<double>(expected.size() - 1);
  CHECK(chi_square < freedom + 5 * std::sqrt(2 * freedom) + 5);
}

TEST_CASE("Philox gives the published vectors") {
  using Words = std::array<std::uint32_t, 4>;
  CHECK(Philox4x32({0, 0, 0, 0}, {0, 0}) == Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(Philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}) ==
        Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
        Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("greedy takes the largest logit, the smaller id on a tie") {
  Sampler sampler;
  const SamplerState greedy;
  CHECK(sampler.Sample(std::vector<float>{-3, 2, 7, 7, 1}, greedy) == 2);
  CHECK(sampler.Sample(std::vector<float>{-0.0f, 0.0f}, greedy) == 0);
  CHECK(sampler.Sample(std::vector<float>{-kInfinity, -5, -kInfinity}, greedy) == 1);
  for (unsigned seed = 0; seed < 20; ++seed) {
    const auto logits = RandomLogits(1001, seed);
    const auto best = std::max_element(logits.begin(), logits.end()) - logits.begin();
    CHECK(sampler.Sample(logits, greedy) == best);
  }
}

TEST_CASE("logits that are not numbers are an error") {
  Sampler sampler;
  SamplingParams params;
  for (const float temperature : {0.0f, 1.0f}) {
    params.temperature = temperature;
    const SamplerState state(params, 1, {});
    for (const float bad : {std::nanf("1"), -std::nanf("1"), kInfinity}) {
      CHECK_THROWS_AS(sampler.Sample(std::vector<float>{0, bad, 1}, state), Error);
    }
    CHECK_THROWS_AS(sampler.Sample(std::vector<float>{-kInfinity, -kInfinity}, state), Error);
  }
}

TEST_CASE("penalties and bias: exact values") {
  Sampler sampler;
  SamplingParams params;
  SUBCASE("repetition divides positive and multiplies negative logits, prompt included") {
    params.repetition_penalty = 2.0f;
    SamplerState state(params, 0, std::vector<std::int32_t>{0, 1});
    CHECK(sampler.Sample(std::vector<float>{4.0f, -1.0f, 2.5f}, state) == 2);    // 2, -2, 2.5
    CHECK(sampler.Sample(std::vector<float>{-1.0f, -0.9f, -1.9f}, state) == 1);  // -2, -1.8, -1.9
    CHECK(sampler.Sample(std::vector<float>{-1.0f, -1.0f, -1.9f}, state) == 2);  // -2, -2, -1.9
  }
  SUBCASE("frequency counts what was generated") {
    params.frequency_penalty = 0.5f;
    SamplerState state(params, 0, std::vector<std::int32_t>{0, 0, 0});
    CHECK(sampler.Sample(std::vector<float>{1.0f, 0.9f}, state) == 0);  // the prompt is not counted
    state.Append(0);
    CHECK(sampler.Sample(std::vector<float>{1.0f, 0.4f}, state) == 0);  // 0.5
    state.Append(0);
    CHECK(sampler.Sample(std::vector<float>{1.0f, 0.4f}, state) == 1);  // 0.0
  }
  SUBCASE("presence is subtracted once") {
    params.presence_penalty = 0.5f;
    SamplerState state(params, 0, std::vector<std::int32_t>{0});
    CHECK(sampler.Sample(std::vector<float>{1.0f, 0.9f}, state) == 0);
    for (int i = 0; i < 3; ++i) state.Append(0);
    CHECK(sampler.Sample(std::vector<float>{1.0f, 0.4f}, state) == 0);
    CHECK(sampler.Sample(std::vector<float>{1.0f, 0.6f}, state) == 1);
  }
  SUBCASE("repetition comes before frequency and presence") {
    params = {.repetition_penalty = 2.0f, .presence_penalty = 1.0f, .frequency_penalty = 1.0f};
    SamplerState state(params, 0, {});
    state.Append(0);
    CHECK(sampler.Sample(std::vector<float>{10.0f, 3.1f}, state) == 1);  // 10 / 2 - 2 = 3
    CHECK(sampler.Sample(std::vector<float>{10.0f, 2.9f}, state) == 0);
  }
  SUBCASE("bias is added first") {
    params.logit_bias = {{2, 5.0f}, {0, -100.0f}};
    params.repetition_penalty = 2.0f;
    SamplerState state(params, 0, std::vector<std::int32_t>{2});
    CHECK(sampler.Sample(std::vector<float>{50.0f, 3.4f, 2.0f}, state) == 2);  // (2 + 5) / 2
    CHECK(sampler.Sample(std::vector<float>{50.0f, 3.6f, 2.0f}, state) == 1);
  }
}

TEST_CASE("what is kept equals brute force, for many parameters") {
  const std::vector<SamplingParams> cases{
      {.temperature = 0.7f},
      {.temperature = 1.0f, .top_k = 1},
      {.temperature = 1.0f, .top_k = 7},
      {.temperature = 1.0f, .top_k = 60},
      {.temperature = 1.0f, .top_k = 1000},
      {.temperature = 1.3f, .top_p = 0.5f},
      {.temperature = 1.3f, .top_p = 0.9f},
      {.temperature = 9.0f, .top_p = 0.9f},
      {.temperature = 1.0f, .top_p = 1e-6f},
      {.temperature = 1.0f, .min_p = 0.1f},
      {.temperature = 1.0f, .min_p = 1.0f},
      {.temperature = 2.0f, .top_k = 10, .top_p = 0.8f},
      {.temperature = 2.0f, .top_k = 20, .top_p = 0.8f, .min_p = 0.05f},
  };
  for (const SamplingParams& params : cases) {
    CAPTURE(params.top_k);
    CAPTURE(params.top_p);
    CAPTURE(params.min_p);
    for (unsigned seed = 0; seed < 5; ++seed) {
      const auto logits = RandomLogits(97, seed);
      const auto expected = BruteForce(logits, params);
      std::set<std::int32_t> drawn;
      Sampler sampler;
      for (std::uint64_t draw = 0; draw < 400; ++draw) {
        drawn.insert(sampler.Sample(logits, SamplerState(params, draw, {})));
      }
      for (const std::int32_t id : drawn) CHECK(expected.contains(id));
      // Whatever is likely enough to be missed with p < 1e-8 must have been drawn.
      for (const auto& [id, p] : expected) {
        if (p > 0.05) CHECK(drawn.contains(id));
      }
    }
  }
}

TEST_CASE("frequencies follow the probabilities") {
  const auto logits = RandomLogits(12, 3);
  CheckDistribution(logits, {.temperature = 1.0f});
  CheckDistribution(logits, {.temperature = 3.0f});
  CheckDistribution(logits, {.temperature = 3.0f, .top_k = 5});
  CheckDistribution(logits, {.temperature = 3.0f, .top_p = 0.7f});
  CheckDistribution(logits, {.temperature = 3.0f, .min_p = 0.2f});
}

TEST_CASE("the tokens of one sequence are distributed as well as those of many") {
  const std::vector<float> flat(4, 0.0f);
  SamplerState state({.temperature = 1.0f}, 42, {});
  Sampler sampler;
  std::map<std::int32_t, int> counts;
  for (int i = 0; i < 8000; ++i) {
    const std::int32_t id = sampler.Sample(flat, state);
    ++counts[id];
    state.Append(id);
  }
  for (std::int32_t id = 0; id < 4; ++id) CHECK(std::abs(counts[id] - 2000) < 200);
}

TEST_CASE("a draw depends on seed and index alone") {
  const auto logits = RandomLogits(500, 1);
  const SamplingParams params{.temperature = 5.0f, .top_k = 100, .top_p = 0.95f};
  const auto generate = [&](std::uint64_t seed, bool in_company) {
    Sampler sampler;
    SamplerState state(params, seed, {});
    SamplerState other(params, seed + 1, {});
    std::vector<std::int32_t> ids;
    for (int i = 0; i < 50; ++i) {
      if (in_company) other.Append(sampler.Sample(RandomLogits(300, 9), other));
      ids.push_back(sampler.Sample(logits, state));
      state.Append(ids.back());
    }
    return ids;
  };
  CHECK(generate(7, false) == generate(7, true));
  CHECK(generate(7, false) != generate(8, false));
  CHECK(generate(1, false) != generate(std::uint64_t{1} << 32, false));
}

TEST_CASE("log probabilities are those of the softmax, likeliest first, ties by id") {
  for (unsigned seed = 0; seed < 20; ++seed) {
    const auto logits = RandomLogits(300, seed);
    double total = 0;
    for (const float logit : logits) total += std::exp(static_cast<double>(logit));
    std::vector<std::int32_t> ids(logits.size());
    std::iota(ids.begin(), ids.end(), 0);
    std::stable_sort(ids.begin(), ids.end(), [&](std::int32_t a, std::int32_t b) {
      return logits[static_cast<std::size_t>(a)] > logits[static_cast<std::size_t>(b)];
    });
    for (const int num_top : {0, 1, 5, 20}) {
      const TokenLogprob result = Sampler().Logprob(logits, 17, num_top);
      CHECK(result.token_id == 17);
      CHECK(result.logprob == doctest::Approx(std::log(std::exp(double{logits[17]}) / total)));
      REQUIRE(result.top.size() == static_cast<std::size_t>(num_top));
      for (std::size_t i = 0; i < result.top.size(); ++i) {
        CHECK(result.top[i].first == ids[i]);
        const double logit = logits[static_cast<std::size_t>(ids[i])];
        CHECK(result.top[i].second == doctest::Approx(std::log(std::exp(logit) / total)));
      }
    }
  }
}

TEST_CASE("log probabilities of masked, huge and few logits") {
  const TokenLogprob masked = Sampler().Logprob(std::vector{-kInfinity, 1e30f, 1e30f}, 1, 3);
  CHECK(masked.logprob == doctest::Approx(-std::log(2.0)));
  REQUIRE(masked.top.size() == 3);
  CHECK(masked.top[0].first == 1);
  CHECK(masked.top[1].first == 2);
  CHECK(masked.top[2].second == -std::numeric_limits<double>::infinity());
  CHECK(Sampler().Logprob(std::vector{2.0f, 1.0f}, 0, 20).top.size() == 2);
}

TEST_CASE("num_logprobs is checked") {
  for (const int good : {0, 20}) SamplingParams{.num_logprobs = good}.Validate();
  for (const int bad : {-1, 21}) {
    CHECK_THROWS_WITH_AS(SamplingParams{.num_logprobs = bad}.Validate(),
                         doctest::Contains("num_logprobs must be 0 to 20"), Error);
  }
}

TEST_CASE("extreme temperatures stay well defined") {
  const auto logits = RandomLogits(64, 5);
  const auto best = std::max_element(logits.begin(), logits.end()) - logits.begin();
  Sampler sampler;
  const float tiny = std::numeric_limits<float>::denorm_min();
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const auto cold = sampler.Sample(logits, SamplerState({.temperature = tiny}, seed, {}));
    CHECK(logits[static_cast<std::size_t>(cold)] == logits[static_cast<std::size_t>(best)]);
    const auto hot = sampler.Sample(logits, SamplerState({.temperature = 1e30f}, seed, {}));
    CHECK(hot >= 0);
    CHECK(hot < 64);
  }
}

TEST_CASE("a masked id is never drawn") {
  std::vector<float> logits(32, 0.0f);
  for (std::size_t i = 0; i < logits.size(); i += 2) logits[i] = -kInfinity;
  Sampler sampler;
  for (const float top_p : {1.0f, 0.999f}) {
    for (std::uint64_t seed = 0; seed < 500; ++seed) {
      const SamplerState state({.temperature = 1.0f, .top_p = top_p}, seed, {});
      CHECK(sampler.Sample(logits, state) % 2 == 1);
    }
  }
}

}  // namespace
}  // namespace pyvlm
