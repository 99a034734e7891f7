#include "csrc/engine/deadlines.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "csrc/engine/engine.h"
#include "csrc/engine/executor.h"
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

// A deadline runs from Submit, so a test knows it within bounds only.
struct Expiring {
  SeqId id;
  TimeUs earliest, latest;
};

Expiring SubmitExpiring(Engine& engine, double deadline_s) {
  const auto prefill = Prefill(deadline_s);
  const auto after = static_cast<TimeUs>(deadline_s * 1e6);
  const TimeUs before = NowUs();
  const SeqId id = engine.Submit(prefill);
  return {id, before + after, NowUs() + after};
}

TEST_CASE("sequences that expire between two steps end in the order of their deadlines") {
  const auto runner = std::make_shared<FakeRunner>(FakeRunner::SmallInfo(2, 128));
  Engine engine(runner, {.check_invariants = true});
  runner->Pause();
  const SeqId running = engine.Submit(Prefill(3600));
  REQUIRE(runner->WaitUntilBlocked(60000));
  std::map<SeqId, Expiring> expiring;
  TimeUs all_passed = 0;
  for (const double deadline_s : {0.4, 0.001, 0.2}) {
    const Expiring added = SubmitExpiring(engine, deadline_s);
    expiring[added.id] = added;
    all_passed = std::max(all_passed, added.latest);
  }
  const SeqId unhurried = engine.Submit(Prefill(3600));
  while (NowUs() <= all_passed) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  engine.Cancel(unhurried);
  engine.Cancel(running);
  runner->Resume();
  const std::vector<SeqId> ended = PullEnds(engine, 5);
  CHECK(ended[0] == running);
  CHECK(ended[1] == unhurried);
  for (std::size_t later = 3; later < ended.size(); ++later) {
    for (std::size_t sooner = 2; sooner < later; ++sooner) {
      CHECK(expiring.at(ended[sooner]).earliest <= expiring.at(ended[later]).latest);
    }
  }
}

}  // namespace
}  // namespace pyvlm
