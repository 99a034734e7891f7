#include "csrc/engine/engine.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "csrc/testing/engine_host.h"
#include "csrc/testing/fake_runner.h"
#include "csrc/testing/fault_runner.h"
#include "csrc/testing/prefills.h"

namespace pyvlm {
namespace {

using Tokens = std::vector<std::int32_t>;
using Images = std::vector<TestImage>;

std::shared_ptr<FakeRunner> MakeRunner(int num_slots = 2, int capacity = 128) {
  return std::make_shared<FakeRunner>(FakeRunner::SmallInfo(num_slots, capacity));
}

std::string CodeOf(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    return std::string(ErrorCodeName(error.code()));
  }
  return "";
}

// Nothing of any sequence is left, in the engine, the runner or the host.
void CheckIdle(EngineHost& host, const FakeRunner& runner) {
  const EngineStats stats = host.engine().Stats();
  CHECK(stats.num_waiting == 0);
  CHECK(stats.num_running == 0);
  CHECK(stats.num_cached == 0);
  CHECK(stats.num_leases == 0);
  CHECK(host.num_leases() == 0);
  CHECK(!host.was_lease_released_twice());
  CHECK(runner.num_live_images() == 0);
  CHECK(runner.num_violations() == 0);
}

TEST_CASE("one text: the model's own tokens, then length") {
  const auto runner = MakeRunner();
  EngineHost host(runner);
  const auto prefill = TestText(13, 1, 9);
  const auto& received = host.Finish(host.Submit(prefill));
  CHECK(received.token_ids == FakeGreedyTokens(*prefill, runner->info(), 9));
  CHECK(received.last.finish_reason == FinishReason::length);
  CHECK(received.last.num_generated == 9);
  CHECK(received.last.num_prompt_tokens == 13);
  CHECK(received.last.num_positions == 13);
  CheckIdle(host, *runner);
}

TEST_CASE("images: pixels, embeddings, several, tiled") {
  const auto runner = MakeRunner();
  EngineHost host(runner);
  const Images images{TestImage::Pixels(3, 1), TestImage::Embeddings(5, 2),
                      TestImage::Pixels(1, 3)};
  const auto prefill = TestPrefill(9, 1, images, 6);
  const auto& received = host.Finish(host.Submit(prefill));
  CHECK(received.token_ids == FakeGreedyTokens(*prefill, runner->info(), 6));
  CHECK(received.last.num_prompt_tokens == 15);
  CHECK(received.last.num_positions == 31);
  CHECK(received.last.times.encode_us >= 0);
  CheckIdle(host, *runner);

  const Images changed{images[0], images[1], TestImage::Pixels(1, 4)};
  const auto other = TestPrefill(9, 1, changed, 6);
  CHECK(host.Finish(host.Submit(other)).token_ids != received.token_ids);
}

TEST_CASE("embeddings are handed to the runner where the host has them") {
  const auto runner = MakeRunner();
  EngineHost host(runner);
  const Images images{TestImage::Embeddings(5, 2)};
  host.Finish(host.Submit(TestPrefill(1, 1, images, 2)));
  CHECK(runner->last_import() == images[0].input().data);
}

TEST_CASE("more sequences than slots: each gets what it gets alone") {
  const auto runner = MakeRunner(3, 128);
  EngineHost host(runner);
  const Images images{TestImage::Pixels(2, 1), TestImage::Embeddings(4, 2)};
  std::vector<std::shared_ptr<const PreparedPrefill>> prefills;
  std::vector<SeqId> ids;
  for (int i = 0; i < 12; ++i) {
    prefills.push_back(i % 3 == 0 ? TestPrefill(i + 1, i, images, 10 + i)
                                  : TestText(3 * i + 1, i, 5 + i));
    ids.push_back(host.Submit(prefills.back()));
  }
  host.FinishAll();
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto& received = host.Finish(ids[i]);
    const auto wanted = static_cast<int>(*prefills[i]->max_new_tokens());
    CHECK(received.token_ids == FakeGreedyTokens(*prefills[i], runner->info(), wanted));
    CHECK(received.num_finishes == 1);
  }
  CheckIdle(host, *runner);
}

TEST_CASE("a seeded sequence gives the same tokens alone and in company") {
  auto fields = TestFields(6, 1, {}, 30);
  fields.sampling = {.temperature = 2.0f,
                     .top_k = 30,
                     .top_p = 0.95f,
                     .repetition_penalty = 1.2f,
                     .frequency_penalty = 0.3f,
                     .logit_bias = {},
                     .seed = 99};
  const auto seeded = std::make_shared<const PreparedPrefill>(fields);
  const auto run = [&](int num_others) {
    EngineHost host(MakeRunner(4, 128));
    for (int i = 0; i < num_others; ++i) host.Submit(TestText(7 + i, i, 20));
    const SeqId seq_id = host.Submit(seeded);
    for (int i = 0; i < num_others; ++i) host.Submit(TestText(3 + i, i, 20));
    return host.Finish(seq_id).token_ids;
  };
  const Tokens alone = run(0);
  CHECK(run(1) == alone);
  CHECK(run(5) == alone);

  fields.sampling.seed = 100;
  const auto other = std::make_shared<const PreparedPrefill>(fields);
  EngineHost host(MakeRunner());
  CHECK(host.Finish(host.Submit(other)).token_ids != alone);
}

TEST_CASE("without a seed, submissions differ") {
  auto fields = TestFields(6, 1, {}, 30);
  fields.sampling.temperature = 5.0f;
  const auto prefill = std::make_shared<const PreparedPrefill>(fields);
  EngineHost host(MakeRunner());
  const SeqId first = host.Submit(prefill);
  const SeqId second = host.Submit(prefill);
  CHECK(host.Finish(first).token_ids != host.Finish(second).token_ids);
}

TEST_CASE("a stop id ends a sequence and is neither emitted nor counted") {
  const auto runner = MakeRunner();
  EngineHost host(runner);
  auto fields = TestFields(5, 1, {}, 20);
  const Tokens tokens = FakeGreedyTokens(PreparedPrefill(fields), runner->info(), 20);
  // The first token that differs from those before it, so that it cannot strike earlier.
  std::size_t index = 3;
  while (std::find(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(index),
                   tokens[index]) != tokens.begin() + static_cast<std::ptrdiff_t>(index)) {
    ++index;
  }
  fields.stop_token_ids = {tokens[index]};
  const auto& received = host.Finish(host.Submit(std::make_shared<const PreparedPrefill>(fields)));
  CHECK(received.token_ids ==
        Tokens(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(index)));
  CHECK(received.last.finish_reason == FinishReason::stop);
  CHECK(received.last.num_generated == static_cast<int>(index));
  CHECK(host.engine().Stats().num_generated_tokens == index);

  fields.stop_token_ids = {tokens[0]};
  const auto& empty = host.Finish(host.Submit(std::make_shared<const PreparedPrefill>(fields)));
  CHECK(empty.token_ids.empty());
  CHECK(empty.last.finish_reason == FinishReason::stop);
  CheckIdle(host, *runner);
}

TEST_CASE("max_new_tokens 0, 1 and unset") {
  const auto runner = MakeRunner(2, 64);
  EngineHost host(runner);
  const Images images{TestImage::Pixels(1, 1)};
  const auto& none = host.Finish(host.Submit(TestPrefill(3, 1, images, 0)));
  CHECK(none.token_ids.empty());
  CHECK(none.last.finish_reason == FinishReason::length);
  CHECK(none.last.num_generated == 0);
  const auto& one = host.Finish(host.Submit(TestText(64 - 1, 1, 1)));
  CHECK(one.token_ids.size() == 1);

  auto fields = TestFields(50, 1, {}, 0);
  fields.max_new_tokens = std::nullopt;
  const PreparedPrefill prefill(fields);
  const auto& rest = host.Finish(host.Submit(std::make_shared<const PreparedPrefill>(fields)));
  CHECK(rest.token_ids == FakeGreedyTokens(prefill, runner->info(), 14));
  CheckIdle(host, *runner);
}

TEST_CASE("a rejected submit uses no id and leaves nothing behind") {
  const auto runner = MakeRunner(1, 32);
  EngineHost host(runner, {.max_queued = 1, .check_invariants = true});
  CHECK(CodeOf([&] { host.Submit(TestText(30, 1, 3)); }) == "context_overflow");
  CHECK(host.Submit(TestText(3, 1, 1)) == 1);
  host.Finish(1);

  runner->Pause();
  CHECK(host.Submit(TestText(3, 1, 4)) == 2);
  CHECK(runner->WaitUntilBlocked(60000));
  CHECK(host.Submit(TestText(3, 1, 4)) == 3);
  CHECK(CodeOf([&] { host.Submit(TestText(3, 1, 4)); }) == "queue_full");
  CHECK(host.engine().Stats().num_waiting == 1);
  runner->Resume();
  host.FinishAll();
  CHECK(host.Submit(TestText(3, 1, 4)) == 4);
  host.FinishAll();

  const Images images{TestImage::Pixels(1, 1)};
  const auto prefill = TestPrefill(1, 1, images, 1);
  CHECK(CodeOf([&] { host.engine().Submit(prefill, {1, 2}); }) == "invalid_parameter");
  CheckIdle(host, *runner);
}

TEST_CASE("cancel: waiting, in prefill, in decode, finished, unknown") {
  const auto runner = MakeRunner(1, 128);
  EngineHost host(runner);
  const Images images{TestImage::Pixels(4, 1), TestImage::Embeddings(3, 1)};
  runner->Pause();
  const SeqId running = host.Submit(TestPrefill(20, 1, images, 40));
  CHECK(runner->WaitUntilBlocked(60000));
  const SeqId waiting = host.Submit(TestPrefill(20, 2, images, 40));
  host.engine().Cancel(waiting);
  host.engine().Cancel(running);
  host.engine().Cancel(running);
  host.engine().Cancel(12345);
  runner->Resume();
  CHECK(host.Finish(waiting).last.finish_reason == FinishReason::cancelled);
  CHECK(host.Finish(running).last.finish_reason == FinishReason::cancelled);
  CHECK(host.Finish(running).token_ids.size() <= 1);  // the step in flight may end the prompt
  CheckIdle(host, *runner);

  const auto prefill = TestPrefill(20, 3, images, 80);
  const SeqId decoding = host.Submit(prefill);
  host.Generate(decoding, 5);
  host.engine().Cancel(decoding);
  const auto& received = host.Finish(decoding);
  const Tokens expected = FakeGreedyTokens(*prefill, runner->info(), 80);
  REQUIRE(received.token_ids.size() >= 5);
  CHECK(std::equal(received.token_ids.begin(), received.token_ids.end(), expected.begin()));
  host.engine().Cancel(decoding);

  const auto next = TestText(9, 4, 7);
  CHECK(host.Finish(host.Submit(next)).token_ids == FakeGreedyTokens(*next, runner->info(), 7));
  CheckIdle(host, *runner);
}

TEST_CASE("a deadline ends a sequence with its own code, waiting or running") {
  const auto runner = MakeRunner(1, 128);
  EngineHost host(runner);
  auto fields = TestFields(5, 1, {}, 50);
  fields.deadline_s = 0.02;
  runner->Pause();
  const SeqId running = host.Submit(std::make_shared<const PreparedPrefill>(fields));
  CHECK(runner->WaitUntilBlocked(60000));
  const SeqId waiting = host.Submit(std::make_shared<const PreparedPrefill>(fields));
  std::this_thread::sleep_for(std::chrono::milliseconds(40));
  runner->Resume();
  for (const SeqId seq_id : {running, waiting}) {
    const auto& received = host.Finish(seq_id);
    CHECK(received.last.finish_reason == FinishReason::error);
    CHECK(received.last.error_code == ErrorCode::kDeadline);
  }
  CheckIdle(host, *runner);
}

TEST_CASE("the pixel lease returns when the image is encoded, not when the sequence ends") {
  const auto runner = MakeRunner(1, 128);
  EngineHost host(runner);
  const Images images{TestImage::Pixels(2, 1)};
  runner->PauseAtDecode();
  const SeqId seq_id = host.Submit(TestPrefill(3, 1, images, 100));
  CHECK(host.num_leases() == 1);
  const auto& received = host.Generate(seq_id, 1);
  CHECK(received.num_finishes == 0);
  CHECK(host.num_leases() == 0);
  host.engine().Cancel(seq_id);
  runner->Resume();
  host.Finish(seq_id);
  CheckIdle(host, *runner);
}

TEST_CASE("shutdown ends everything as cancelled and gives every lease back") {
  const auto runner = MakeRunner(1, 128);
  EngineHost host(runner);
  const Images images{TestImage::Pixels(4, 1), TestImage::Embeddings(3, 1)};
  runner->Pause();
  std::vector<SeqId> ids;
  for (int i = 0; i < 4; ++i) ids.push_back(host.Submit(TestPrefill(20, i, images, 40)));
  CHECK(runner->WaitUntilBlocked(60000));
  std::thread closing([&] { host.engine().Shutdown(); });
  // Before the shutdown this is too long a prompt.
  while (CodeOf([&] { host.Submit(TestText(127, 1, 2)); }) != "draining") {
    std::this_thread::yield();
  }
  runner->Resume();
  closing.join();
  host.engine().Shutdown();
  for (const SeqId seq_id : ids) {
    CHECK(host.Finish(seq_id).last.finish_reason == FinishReason::cancelled);
  }
  CHECK(CodeOf([&] { host.Submit(TestText(1, 1, 1)); }) == "draining");
  CHECK(CodeOf([&] { host.engine().WaitOutputs({}); }) == "draining");
  host.engine().Cancel(ids[0]);
  CHECK(!host.engine().Stats().is_alive);
  CheckIdle(host, *runner);
}

TEST_CASE("a runner that contradicts itself is refused") {
  auto info = FakeRunner::SmallInfo(4, 64);
  SUBCASE("decode batch") { info.max_decode_batch = 3; }
  SUBCASE("stages") { info.costs.encode_stage.pop_back(); }
  SUBCASE("chunk") { info.max_chunk = 0; }
  const auto runner = std::make_shared<FakeRunner>(info);
  CHECK(CodeOf([&] { Engine engine(runner, {}); }) == "program_mismatch");
}

TEST_CASE("a runner serves one engine at a time") {
  const auto runner = MakeRunner();
  {
    EngineHost host(runner);
    CHECK(CodeOf([&] { Engine second(runner, {}); }) == "invalid_parameter");
    CHECK(CodeOf([&] { FaultRunner between(runner, {}); }) == "invalid_parameter");
    const auto prefill = TestText(5, 1, 3);
    CHECK(host.Finish(host.Submit(prefill)).token_ids ==
          FakeGreedyTokens(*prefill, runner->info(), 3));
    host.engine().Shutdown();
    EngineHost next(runner);
    CHECK(next.Finish(next.Submit(prefill)).num_finishes == 1);
    host.engine().Shutdown();  // gives nothing back a second time
    CHECK(CodeOf([&] { Engine third(runner, {}); }) == "invalid_parameter");
  }
  CHECK(CodeOf([&] { Engine engine(runner, {.max_queued = -1}); }) == "invalid_parameter");
  Engine engine(runner, {});
}

TEST_CASE("options are validated") {
  CHECK(CodeOf([] { Engine engine(MakeRunner(), {.step_budget_ms = 0}); }) == "invalid_parameter");
  CHECK(CodeOf([] { Engine engine(MakeRunner(), {.max_queued = -1}); }) == "invalid_parameter");
  CHECK(CodeOf([] { Engine engine(nullptr, {}); }) == "invalid_parameter");
}

TEST_CASE("stats count what was done") {
  const auto runner = MakeRunner(2, 128);
  EngineHost host(runner);
  const Images images{TestImage::Pixels(2, 1)};
  host.Finish(host.Submit(TestPrefill(3, 1, images, 4)));
  host.Finish(host.Submit(TestText(10, 1, 6)));
  const EngineStats stats = host.engine().Stats();
  CHECK(stats.num_submitted == 2);
  CHECK(stats.num_length == 2);
  CHECK(stats.num_prompt_tokens == 5 + 10);
  CHECK(stats.num_prefill_positions == 10 + 10);
  CHECK(stats.num_generated_tokens == 10);
  CHECK(stats.num_encode_units == 6);
  CHECK(stats.num_prefill_chunks == 4);
  CHECK(stats.decode_width[1] == 3 + 5);
  CHECK(stats.num_slots == 2);
  CHECK(stats.capacity == 128);
}

TEST_CASE("steps are counted by their time") {
  const auto runner = MakeRunner();
  EngineHost host(runner);
  host.Finish(host.Submit(TestText(10, 1, 6)));
  const EngineStats stats = host.engine().Stats();
  std::uint64_t total = 0;
  for (const std::uint64_t count : stats.step_us.counts) total += count;
  CHECK(total == stats.num_steps);
  CHECK(stats.step_us.sum >= stats.max_step_us);

  TimeHistogram histogram;
  for (const TimeUs duration : {0, 100, 101, 10'000'000, 10'000'001}) histogram.Add(duration);
  CHECK(histogram.counts.front() == 2);
  CHECK(histogram.counts[1] == 1);
  CHECK(histogram.counts[histogram.counts.size() - 2] == 1);
  CHECK(histogram.counts.back() == 1);
  CHECK(histogram.sum == 20'000'202);
}

TEST_CASE("log probabilities come with each token that is emitted") {
  const auto runner = MakeRunner();
  EngineHost host(runner);
  auto fields = TestFields(6, 1, {}, 1);
  // The penalties and the bias change what is drawn, not what is reported.
  fields.sampling = {.temperature = 1.0f, .logit_bias = {{3, 50.0f}}, .seed = 5, .num_logprobs = 4};
  const auto plain = TestText(6, 1, 1);
  const auto& received = host.Finish(host.Submit(std::make_shared<const PreparedPrefill>(fields)));
  REQUIRE(received.last.logprobs.size() == 1);
  const TokenLogprob& logprob = received.last.logprobs[0];
  CHECK(logprob.token_id == 3);
  CHECK(logprob.logprob < logprob.top[0].second);
  CHECK(logprob.top[0].first == FakeGreedyTokens(*plain, runner->info(), 1)[0]);
  CHECK(logprob.top.size() == 4);
  CHECK(std::is_sorted(logprob.top.begin(), logprob.top.end(),
                       [](const auto& a, const auto& b) { return a.second > b.second; }));
  CHECK(host.Finish(host.Submit(plain)).last.logprobs.empty());
}

// Any order of submits and cancels: every sequence ends once, with a prefix of its own tokens, and
// all slots, rows and leases come back.
TEST_CASE("property: random submits and cancels") {
  std::mt19937 random(7);
  const auto pick = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  for (int round = 0; round < 15; ++round) {
    const auto runner = MakeRunner(pick(1, 4), 96);
    EngineHost host(runner, {.step_budget_ms = pick(1, 30) * 1.0, .check_invariants = true});
    const Images images{TestImage::Pixels(pick(1, 4), round), TestImage::Embeddings(3, round)};
    std::vector<std::pair<SeqId, std::shared_ptr<const PreparedPrefill>>> submitted;
    for (int i = 0; i < 40; ++i) {
      if (pick(0, 2) > 0 || submitted.empty()) {
        const auto prefill = pick(0, 1) == 0 ? TestText(pick(1, 40), i, pick(0, 30))
                                             : TestPrefill(pick(0, 20), i, images, pick(0, 20));
        submitted.emplace_back(host.Submit(prefill), prefill);
      } else {
        const auto index =
            static_cast<std::size_t>(pick(0, static_cast<int>(submitted.size()) - 1));
        host.engine().Cancel(submitted[index].first);
      }
    }
    host.FinishAll();
    for (const auto& [seq_id, prefill] : submitted) {
      const auto& received = host.Finish(seq_id);
      const auto wanted = static_cast<int>(*prefill->max_new_tokens());
      const Tokens expected = FakeGreedyTokens(*prefill, runner->info(), wanted);
      CHECK(received.num_finishes == 1);
      REQUIRE(received.token_ids.size() <= expected.size());
      CHECK(std::equal(received.token_ids.begin(), received.token_ids.end(), expected.begin()));
      if (received.last.finish_reason != FinishReason::cancelled) {
        CHECK(received.last.finish_reason == FinishReason::length);
        CHECK(received.token_ids == expected);
      }
    }
    CheckIdle(host, *runner);
  }
}

}  // namespace
}  // namespace pyvlm
