#include "csrc/engine/deadlines.h"

#include <doctest/doctest.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <thread>
#include <vector>

#include "csrc/engine/engine.h"
#include "csrc/testing/fake_runner.h"
#include "csrc/testing/prefills.h"

namespace pyvlm {
namespace {

TEST_CASE("the earliest of those that have passed comes first, until it is removed") {
  Deadlines deadlines;
  CHECK(deadlines.IsEmpty());
  deadlines.Add(30, 1);
  deadlines.Add(10, 2);
  deadlines.Add(20, 3);
  deadlines.Add(20, 4);
  deadlines.Add(0, 5);  // has none
  CHECK(deadlines.Passed(9) == 0);
  CHECK(deadlines.Passed(10) == 2);
  CHECK(deadlines.Passed(100) == 2);
  deadlines.Remove(10, 2);
  deadlines.Remove(10, 2);
  deadlines.Remove(0, 5);
  CHECK(deadlines.Passed(100) == 3);
  deadlines.Remove(20, 3);
  CHECK(deadlines.Passed(100) == 4);
  deadlines.Remove(20, 4);
  CHECK(deadlines.Passed(29) == 0);
  CHECK(deadlines.Passed(30) == 1);
  deadlines.Remove(30, 1);
  CHECK(deadlines.IsEmpty());
}

std::shared_ptr<const PreparedPrefill> Prefill(double deadline_s) {
  auto fields = TestFields(5, 1, {}, 50);
  fields.deadline_s = deadline_s;
  return std::make_shared<const PreparedPrefill>(fields);
}

// Pulls until `count` sequences have ended; their ids, in that order.
std::vector<SeqId> PullEnds(Engine& engine, std::size_t count) {
  std::vector<SeqId> ended;
  while (ended.size() < count) {
    const Outputs outputs = engine.WaitOutputs(std::chrono::seconds(60));
    REQUIRE(!outputs.IsEmpty());
    for (const TokenOutput& output : outputs.tokens) {
      if (output.finish_reason != FinishReason::none) ended.push_back(output.seq_id);
    }
  }
  return ended;
}

TEST_CASE("sequences that expire between two steps end in the order of their deadlines") {
  const auto runner = std::make_shared<FakeRunner>(FakeRunner::SmallInfo(2, 128));
  Engine engine(runner, {.check_invariants = true});
  runner->Pause();
  const SeqId running = engine.Submit(Prefill(3600));
  REQUIRE(runner->WaitUntilBlocked(60000));
  const SeqId last = engine.Submit(Prefill(0.4));
  const SeqId unhurried = engine.Submit(Prefill(3600));
  const SeqId first = engine.Submit(Prefill(0.001));
  const SeqId second = engine.Submit(Prefill(0.2));
  std::this_thread::sleep_for(std::chrono::milliseconds(420));
  engine.Cancel(unhurried);
  engine.Cancel(running);
  runner->Resume();
  CHECK(PullEnds(engine, 5) == std::vector<SeqId>{running, unhurried, first, second, last});
}

}  // namespace
}  // namespace pyvlm
