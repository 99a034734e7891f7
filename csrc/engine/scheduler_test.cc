#include "csrc/engine/scheduler.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "csrc/engine/prompt_work.h"
#include "csrc/testing/prefills.h"

namespace pyvlm {
namespace {

// Sequences under a scheduler, with the engine's bookkeeping and no engine.
class Bench {
 public:
  explicit Bench(const RunnerInfo& info, double budget) : info_(info), scheduler(info_, budget) {}

  Sequence* Add(std::shared_ptr<const PreparedPrefill> prefill) {
    auto sequence = std::make_unique<Sequence>();
    sequence->id = ++last_id_;
    sequence->prefill = std::move(prefill);
    sequence->leases.resize(static_cast<std::size_t>(sequence->prefill->num_images()));
    scheduler.Add(sequence.get());
    sequences_.push_back(std::move(sequence));
    return sequences_.back().get();
  }
  Sequence* AddText(int length) { return Add(TestText(length, 1, 1)); }
  // An image of one tile whose rows are there.
  Sequence* AddCached(int num_text) {
    auto fields = TestFields(num_text, 1, {TestImage::Pixels(1, 1)}, 1);
    fields.images[0] =
        ImageInput::Cached(std::make_shared<const ImageRows>(nullptr, 2, info_.hidden_size, 1));
    return Add(std::make_shared<const PreparedPrefill>(std::move(fields)));
  }
  Sequence* AddImage(int num_text, int num_tiles) {
    images_.push_back({TestImage::Pixels(num_tiles, 1)});
    return Add(TestPrefill(num_text, 1, images_.back(), 1));
  }

  // Plans a step and applies it as if every unit had succeeded.
  StepPlan Step() {
    StepPlan plan = scheduler.Schedule(0);
    for (const WorkUnit& unit : plan.units) Advance(unit, info_, unit.sequence->progress);
    for (Sequence* sequence : plan.decode) ++sequence->num_generated;
    scheduler.CheckInvariants();
    return plan;
  }

  // A sequence that decodes for ever.
  Sequence* AddDecoding() {
    Sequence* sequence = AddText(1);
    while (!sequence->IsDecoding()) Step();
    return sequence;
  }

 private:
  RunnerInfo info_;
  SeqId last_id_ = 0;
  std::deque<std::vector<TestImage>> images_;
  std::vector<std::unique_ptr<Sequence>> sequences_;

 public:
  Scheduler scheduler;
};

// "E0.1" = encode tile 0 stage 1, "I" = import, "C" = cached rows, "P3+5" = 5 positions from 3 on;
// '*' = with rows.
std::string Text(const WorkUnit& unit) {
  switch (unit.kind) {
    case WorkUnit::Kind::encode:
      return "E" + std::to_string(unit.tile) + "." + std::to_string(unit.stage);
    case WorkUnit::Kind::import_rows:
      return "I";
    case WorkUnit::Kind::cached_rows:
      return "C";
    case WorkUnit::Kind::prefill:
      break;
  }
  return "P" + std::to_string(unit.start) + "+" + std::to_string(unit.count) +
         (unit.image >= 0 ? "*" + std::to_string(unit.image) : "");
}

std::string Text(const StepPlan& plan) {
  std::string text = "D" + std::to_string(plan.decode.size());
  for (const WorkUnit& unit : plan.units) {
    text += " " + std::to_string(unit.sequence->id) + ":" + Text(unit);
  }
  return text;
}

double Cost(const StepPlan& plan) {
  double cost = 0;
  for (const WorkUnit& unit : plan.units) cost += unit.cost;
  return cost;
}

constexpr double kLargeBudget = 1e9;

TEST_CASE("a prompt falls into units") {
  const RunnerInfo info = FakeRunner::SmallInfo(1, 256);
  const auto units_of = [&](std::shared_ptr<const PreparedPrefill> prefill) {
    Bench bench(info, kLargeBudget);
    bench.Add(std::move(prefill));
    return Text(bench.Step());
  };
  CHECK(units_of(TestText(3, 0, 1)) == "D0 1:P0+3");
  CHECK(units_of(TestText(8, 0, 1)) == "D0 1:P0+8");
  CHECK(units_of(TestText(19, 0, 1)) == "D0 1:P0+8 1:P8+8 1:P16+3");

  const std::vector<TestImage> one{TestImage::Pixels(1, 0)};  // 4 positions and one of text
  CHECK(units_of(TestPrefill(2, 0, one, 1)) == "D0 1:E0.0 1:E0.1 1:E0.2 1:P0+7*0");
  // Text that fills a chunk before the image does not wait for it.
  CHECK(units_of(TestPrefill(8, 0, one, 1)) == "D0 1:P0+8 1:E0.0 1:E0.1 1:E0.2 1:P8+5*0");

  const std::vector<TestImage> tiled{TestImage::Pixels(2, 0)};
  CHECK(units_of(TestPrefill(1, 0, tiled, 1)) ==
        "D0 1:E0.0 1:E0.1 1:E0.2 1:E1.0 1:E1.1 1:E1.2 1:P0+8*0");

  // No chunk reaches into two images; the second is encoded when the first is cached.
  const std::vector<TestImage> two{TestImage::Pixels(1, 0), TestImage::Embeddings(1, 0)};
  CHECK(units_of(TestPrefill(1, 0, two, 1)) == "D0 1:E0.0 1:E0.1 1:E0.2 1:P0+6*0 1:I 1:P6+4*1");
}

TEST_CASE("completion flags are set on the last units") {
  Bench bench(FakeRunner::SmallInfo(1, 256), kLargeBudget);
  bench.AddImage(9, 2);
  const StepPlan plan = bench.Step();
  for (std::size_t i = 0; i < plan.units.size(); ++i) {
    const WorkUnit& unit = plan.units[i];
    CHECK(unit.completes_prompt == (i + 1 == plan.units.size()));
    CHECK(unit.completes_image == (Text(unit) == "E1.2"));
  }
}

TEST_CASE("slots are given in order of arrival") {
  Bench bench(FakeRunner::SmallInfo(2, 64), kLargeBudget);
  Sequence* first = bench.AddText(3);
  Sequence* second = bench.AddImage(3, 1);
  Sequence* third = bench.AddText(3);
  Sequence* fourth = bench.AddImage(3, 1);
  bench.Step();
  CHECK(first->slot == 0);
  CHECK(second->slot == 1);
  CHECK(third->state == Sequence::State::waiting);

  bench.scheduler.Remove(second);
  CHECK(second->state == Sequence::State::finished);
  bench.Step();
  CHECK(third->slot == 1);
  CHECK(fourth->state == Sequence::State::waiting);

  bench.scheduler.Remove(fourth);  // while it waits
  bench.scheduler.Remove(first);
  bench.scheduler.Remove(third);
  CHECK(bench.scheduler.slots().num_free() == 2);
  CHECK(bench.scheduler.Schedule(0).IsEmpty());
}

TEST_CASE("queue time is the passed clock's") {
  Bench bench(FakeRunner::SmallInfo(1, 64), kLargeBudget);
  Sequence* sequence = bench.AddText(3);
  sequence->submitted = 1000;
  bench.scheduler.Schedule(4500);
  CHECK(sequence->times.queue_us == 3500);
}

TEST_CASE("running rows decode in every step while prompts are worked on") {
  Bench bench(FakeRunner::SmallInfo(3, 256), 5000);
  Sequence* decoding = bench.AddDecoding();
  Sequence* text = bench.AddText(100);
  Sequence* image = bench.AddImage(5, 6);
  int steps = 0;
  while (!text->IsDecoding() || !image->IsDecoding()) {
    const StepPlan plan = bench.Step();
    REQUIRE(!plan.decode.empty());
    CHECK(plan.decode.front() == decoding);
    CHECK(Cost(plan) <= 5000);
    CHECK(!plan.units.empty());
    REQUIRE(++steps < 100);
  }
  CHECK(Text(bench.Step()) == "D3");
}

TEST_CASE("the budget bounds a step; one unit always runs") {
  RunnerInfo info = FakeRunner::SmallInfo(2, 256);
  info.max_chunk = 64;  // a chunk costs 1000 + 500 per position
  SUBCASE("chunks are cut to the budget") {
    Bench bench(info, 11000);
    bench.AddDecoding();
    bench.AddText(100);
    CHECK(Text(bench.Step()) == "D1 2:P0+20");
    CHECK(Text(bench.Step()) == "D1 2:P20+20");
  }
  SUBCASE("a chunk is not cut below the shortest") {
    Bench bench(info, 1);
    bench.AddDecoding();
    bench.AddText(40);
    CHECK(Text(bench.Step()) == "D1 2:P0+16");
    CHECK(Text(bench.Step()) == "D1 2:P16+16");
    CHECK(Text(bench.Step()) == "D1 2:P32+8");
  }
  SUBCASE("an encode stage dearer than the budget runs alone") {
    Bench bench(info, 1500);
    bench.AddDecoding();
    bench.AddImage(2, 1);
    CHECK(Text(bench.Step()) == "D1 2:E0.0");
    CHECK(Text(bench.Step()) == "D1 2:E0.1");
    CHECK(Text(bench.Step()) == "D1 2:E0.2");
    CHECK(Text(bench.Step()) == "D1 2:P0+7*0");
  }
  SUBCASE("without decoding rows a step takes a full chunk") {
    Bench bench(info, 1);
    bench.AddText(100);
    CHECK(Text(bench.Step()) == "D0 1:P0+64");
  }
}

TEST_CASE("a text admitted behind a large image does not wait for it") {
  Bench bench(FakeRunner::SmallInfo(3, 256), 7000);
  bench.AddDecoding();
  Sequence* image = bench.AddImage(2, 50);
  bench.Step();
  Sequence* text = bench.AddText(6);
  int steps = 0;
  while (!text->IsDecoding()) {
    bench.Step();
    REQUIRE(++steps <= 2);
  }
  CHECK(image->IsPrefilling());
}

TEST_CASE("cached rows cost nothing and do not wait for an image that is being encoded") {
  Bench bench(FakeRunner::SmallInfo(2, 256), 12000);
  bench.AddImage(1, 20);
  bench.AddCached(1);
  // Its chunk shares the step with the first stages of the large image.
  CHECK(Text(bench.Step()) == "D0 1:E0.0 2:C 2:P0+6*0 1:E0.1 1:E0.2 1:E1.0");
  CHECK(bench.scheduler.running().back()->IsDecoding());
}

TEST_CASE("a stream of texts cannot starve an image, nor images a text") {
  RunnerInfo info = FakeRunner::SmallInfo(4, 256);
  const double budget = 7000;
  for (const bool images_flood : {false, true}) {
    CAPTURE(images_flood);
    Bench bench(info, budget);
    bench.AddDecoding();
    const auto flood = [&] { return images_flood ? bench.AddImage(0, 8) : bench.AddText(60); };
    std::vector<Sequence*> others{flood(), flood()};
    bench.Step();
    Sequence* victim = images_flood ? bench.AddText(60) : bench.AddImage(2, 8);
    double spent = 0;
    double own = 0;
    for (int steps = 0; !victim->IsDecoding(); ++steps) {
      REQUIRE(steps < 1000);
      for (const WorkUnit& unit : bench.Step().units) {
        spent += unit.cost;
        if (unit.sequence == victim) own += unit.cost;
      }
      // Each that is through makes room for the next of the flood.
      for (Sequence*& other : others) {
        if (!other->IsDecoding()) continue;
        bench.scheduler.Remove(other);
        other = flood();
      }
    }
    // Two admitted before it may go first; from then on it has half of the time.
    CHECK(spent < 2 * own + 2 * 60000);
  }
}

// The bound of scheduler.h on random workloads: between two units of the earliest admitted
// sequence with prompt work, other prompt work costs at most 2u.
TEST_CASE("starvation bound on random workloads") {
  std::mt19937 random(1);
  const auto pick = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  for (int round = 0; round < 60; ++round) {
    RunnerInfo info = FakeRunner::SmallInfo(5, 4096);
    info.max_chunk = pick(4, 64);
    for (double& cost : info.costs.encode_stage) cost = pick(100, 20000);
    const double budget = pick(500, 20000);
    Bench bench(info, budget);
    bench.AddDecoding();
    const double u = std::max(
        {budget, ChunkCost(Scheduler::kMinChunk, info.costs),
         *std::max_element(info.costs.encode_stage.begin(), info.costs.encode_stage.end())});
    double others = 0;
    const Sequence* earliest = nullptr;
    for (int step = 0; step < 300; ++step) {
      if (pick(0, 2) == 0) {
        pick(0, 1) == 0 ? bench.AddText(pick(1, 200)) : bench.AddImage(pick(0, 20), pick(1, 9));
      }
      const StepPlan plan = bench.scheduler.Schedule(0);
      CHECK(Cost(plan) <= u);
      for (const WorkUnit& unit : plan.units) {
        const auto& running = bench.scheduler.running();
        const auto first = std::find_if(running.begin(), running.end(),
                                        [](const Sequence* s) { return s->IsPrefilling(); });
        REQUIRE(first != running.end());
        if (*first != earliest) others = 0;
        earliest = *first;
        others = unit.sequence == earliest ? 0 : others + unit.cost;
        CHECK(others <= 2 * u);
        Advance(unit, info, unit.sequence->progress);
      }
      bench.scheduler.CheckInvariants();
      const auto running = bench.scheduler.running();
      for (Sequence* sequence : running) {
        if (sequence->id > 1 && sequence->IsDecoding()) bench.scheduler.Remove(sequence);
      }
    }
  }
}

TEST_CASE("broken invariants are found") {
  Bench bench(FakeRunner::SmallInfo(2, 64), kLargeBudget);
  Sequence* sequence = bench.AddText(3);
  bench.Step();
  bench.scheduler.CheckInvariants();
  SUBCASE("a slot that is not the sequence's") { sequence->slot = 1; }
  SUBCASE("a state that does not fit the list") { sequence->state = Sequence::State::waiting; }
  SUBCASE("too much progress") { sequence->progress.num_cached = 4; }
  SUBCASE("progress while waiting") {
    bench.AddText(1);
    bench.Step();
    bench.AddText(1)->progress.num_cached = 1;
  }
  CHECK_THROWS_AS(bench.scheduler.CheckInvariants(), std::logic_error);
}

}  // namespace
}  // namespace pyvlm
