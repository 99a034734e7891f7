// Isolation: what the engine does when calls of its runner fail.
#include <doctest/doctest.h>

#include <atomic>
#include <limits>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "csrc/engine/engine.h"
#include "csrc/testing/engine_host.h"
#include "csrc/testing/fake_runner.h"
#include "csrc/testing/fault_runner.h"
#include "csrc/testing/prefills.h"

namespace pyvlm {
namespace {

using Images = std::vector<TestImage>;

// Four sequences, two of them with images, under injected faults.
struct Scene {
  explicit Scene(std::vector<Fault> faults, int num_slots = 4)
      : fake(std::make_shared<FakeRunner>(FakeRunner::SmallInfo(num_slots, 128))),
        faulty(std::make_shared<FaultRunner>(fake, std::move(faults))),
        host(faulty) {
    prefills = {TestText(9, 1, 12), TestPrefill(4, 2, images, 12), TestText(21, 3, 12),
                TestPrefill(12, 4, images, 12)};
    // All arrive before the first step, so that every run makes the same calls.
    fake->Pause();
    for (const auto& prefill : prefills) ids.push_back(host.Submit(prefill));
  }

  void Run() {
    fake->Resume();
    host.FinishAll();
  }

  bool IsRight(std::size_t index) {
    const auto& received = host.Finish(ids[index]);
    return received.last.finish_reason == FinishReason::length &&
           received.token_ids == FakeGreedyTokens(*prefills[index], fake->info(), 12);
  }

  bool HasFailed(std::size_t index, ErrorCode code) {
    const auto& received = host.Finish(ids[index]);
    return received.last.finish_reason == FinishReason::error && received.last.error_code == code;
  }

  int CountFailed() {
    int failed = 0;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (HasFailed(i, ErrorCode::kEngineFailed)) {
        ++failed;
      } else {
        CHECK(IsRight(i));
      }
    }
    return failed;
  }

  void CheckClean() {
    CHECK(host.num_leases() == 0);
    CHECK(!host.was_lease_released_twice());
    CHECK(fake->num_live_images() == 0);
    CHECK(fake->num_violations() == 0);
    CHECK(host.engine().Stats().num_running == 0);
  }

  Images images{TestImage::Pixels(2, 1), TestImage::Embeddings(3, 2)};
  std::shared_ptr<FakeRunner> fake;
  std::shared_ptr<FaultRunner> faulty;
  EngineHost host;
  std::vector<std::shared_ptr<const PreparedPrefill>> prefills;
  std::vector<SeqId> ids;
};

TEST_CASE("a failed encode, import or prefill ends its sequence alone, whichever call it is") {
  for (const FaultCall call : {FaultCall::encode, FaultCall::import_rows, FaultCall::prefill}) {
    int k = 1;
    for (;; ++k) {
      CAPTURE(static_cast<int>(call));
      CAPTURE(k);
      Scene scene({{.call = call, .first = k}});
      scene.Run();
      scene.CheckClean();
      const int failed = scene.CountFailed();
      if (scene.faulty->num_strikes() == 0) break;  // k is beyond the last call
      CHECK(failed == 1);
      // The next request is served as if nothing had happened.
      const auto next = TestPrefill(5, 9, scene.images, 8);
      CHECK(scene.host.Finish(scene.host.Submit(next)).token_ids ==
            FakeGreedyTokens(*next, scene.fake->info(), 8));
      scene.CheckClean();
    }
    CHECK(k > 2);
  }
}

TEST_CASE("a decode step that fails once is repeated row by row and nobody notices") {
  Scene scene({{.call = FaultCall::decode, .first = 3}});
  scene.Run();
  CHECK(scene.CountFailed() == 0);
  CHECK(scene.host.engine().Stats().num_decode_retries == 1);
  scene.CheckClean();
}

TEST_CASE("a row that makes decode fail is found, the others go on") {
  for (SlotId slot = 0; slot < 4; ++slot) {
    Scene scene({{.call = FaultCall::decode,
                  .first = 2,
                  .count = std::numeric_limits<std::int64_t>::max(),
                  .slot = slot}});
    scene.Run();
    CHECK(scene.CountFailed() == 1);
    CHECK(scene.HasFailed(static_cast<std::size_t>(slot), ErrorCode::kEngineFailed));
    scene.CheckClean();
  }
}

TEST_CASE("logits that are NaN fail their row alone") {
  Scene scene({{.call = FaultCall::decode, .action = FaultAction::corrupt, .first = 4, .slot = 2}});
  scene.Run();
  CHECK(scene.CountFailed() == 1);
  CHECK(scene.HasFailed(2, ErrorCode::kEngineFailed));
  CHECK(scene.host.engine().Stats().num_decode_retries == 0);
  scene.CheckClean();

  Scene prefill({{.call = FaultCall::prefill, .action = FaultAction::corrupt, .first = 1}});
  prefill.Run();
  CHECK(prefill.CountFailed() <= 1);
  prefill.CheckClean();
}

TEST_CASE("a slow call changes nothing") {
  Scene scene({{.call = FaultCall::encode, .action = FaultAction::delay, .delay_ms = 20},
               {.call = FaultCall::decode, .action = FaultAction::delay, .delay_ms = 20}});
  scene.Run();
  CHECK(scene.CountFailed() == 0);
  CHECK(scene.faulty->num_strikes() == 2);
}

TEST_CASE("corrupted pixels change the tokens of that image's sequence alone") {
  Scene scene({{.call = FaultCall::encode, .action = FaultAction::corrupt}});
  scene.Run();
  CHECK(scene.IsRight(0));
  CHECK(!scene.IsRight(1));
  CHECK(scene.IsRight(2));
  CHECK(scene.IsRight(3));
}

TEST_CASE("a lost device stops the engine for good") {
  for (const FaultCall call :
       {FaultCall::encode, FaultCall::import_rows, FaultCall::prefill, FaultCall::decode}) {
    Scene scene({{.call = call, .first = 2, .code = ErrorCode::kDeviceUnavailable}}, 2);
    scene.Run();
    int num_dead = 0;
    for (std::size_t i = 0; i < scene.ids.size(); ++i) {
      if (scene.HasFailed(i, ErrorCode::kEngineDead)) {
        ++num_dead;
      } else {
        CHECK(scene.IsRight(i));  // it was through before
      }
    }
    CHECK(num_dead > 0);
    for (int repeat = 0; repeat < 2; ++repeat) {
      const auto is_dead = [](const Error& error) {
        return error.code() == ErrorCode::kEngineDead;
      };
      try {
        scene.host.Submit(scene.prefills[0]);
        FAIL("a dead engine took a sequence");
      } catch (const Error& error) {
        CHECK(is_dead(error));
        CHECK(std::string(error.what()).find("an injected fault") != std::string::npos);
      }
      try {
        scene.host.engine().WaitOutputs({});
        FAIL("a dead engine was waited for");
      } catch (const Error& error) {
        CHECK(is_dead(error));
      }
    }
    CHECK(!scene.host.engine().Stats().is_alive);
    scene.CheckClean();
    scene.host.engine().Shutdown();
  }
}

// A device lost in the row-by-row repetition is no fault of the row.
TEST_CASE("a device lost while decode is repeated stops the engine") {
  Scene scene({{.call = FaultCall::decode, .first = 2},
               {.call = FaultCall::decode, .first = 3, .code = ErrorCode::kDeviceUnavailable}});
  scene.Run();
  CHECK(scene.HasFailed(0, ErrorCode::kEngineDead));
  CHECK(!scene.host.engine().Stats().is_alive);
  scene.CheckClean();
}

// A runner with bugs that its contract rules out.
class BrokenRunner : public FakeRunner {
 public:
  enum class Bug { foreign_exception, short_logits, info_throws, info_throws_no_exception };

  BrokenRunner(Bug bug, int at) : FakeRunner(SmallInfo(4, 128)), bug_(bug), countdown_(at) {}

  const RunnerInfo& info() const override {
    if (has_struck_ && bug_ == Bug::info_throws) throw std::logic_error("a secret");
    if (has_struck_ && bug_ == Bug::info_throws_no_exception) throw 42;
    return FakeRunner::info();
  }

  std::span<const float> Prefill(const PrefillCall& call) override {
    const std::span<const float> logits = FakeRunner::Prefill(call);
    if (--countdown_ != 0) return logits;
    has_struck_ = true;
    if (bug_ == Bug::foreign_exception) throw std::string("a secret");
    return bug_ == Bug::short_logits ? std::span<const float>(&too_few_, 1) : logits;
  }

 private:
  const Bug bug_;
  int countdown_;
  std::atomic<bool> has_struck_{false};
  float too_few_ = 0;
};

struct BrokenScene {
  BrokenScene(BrokenRunner::Bug bug, int at)
      : runner(std::make_shared<BrokenRunner>(bug, at)), host(runner) {
    runner->Pause();
    for (int i = 0; i < 6; ++i) ids.push_back(host.Submit(TestPrefill(4, i, images, 12)));
    runner->Resume();
    host.FinishAll();
  }

  int Count(ErrorCode code) {
    int count = 0;
    for (const SeqId id : ids) {
      const auto& received = host.Finish(id);
      CHECK(received.num_finishes == 1);
      CHECK(received.last.error_message.find("secret") == std::string::npos);
      count +=
          received.last.finish_reason == FinishReason::error && received.last.error_code == code;
    }
    return count;
  }

  void CheckClean() {
    CHECK(host.num_leases() == 0);
    CHECK(!host.was_lease_released_twice());
    CHECK(runner->num_live_images() == 0);
    CHECK(host.engine().Stats().num_leases == 0);
    CHECK(host.engine().Stats().num_running == 0);
    CHECK(host.engine().Stats().num_waiting == 0);
  }

  Images images{TestImage::Pixels(1, 1), TestImage::Embeddings(3, 2)};
  std::shared_ptr<BrokenRunner> runner;
  EngineHost host;
  std::vector<SeqId> ids;
};

TEST_CASE("an exception of any type, or logits of a wrong size, fail their sequence alone") {
  for (const auto bug : {BrokenRunner::Bug::foreign_exception, BrokenRunner::Bug::short_logits}) {
    // The short logits are looked at in the last chunk of a prompt only.
    int num_failed = 0;
    for (int at = 1; at <= 4; ++at) {
      BrokenScene scene(bug, at);
      num_failed += scene.Count(ErrorCode::kEngineFailed);
      CHECK(scene.Count(ErrorCode::kEngineDead) == 0);
      CHECK(scene.host.engine().Stats().is_alive);
      scene.CheckClean();
    }
    CHECK(num_failed > 0);
    CHECK(num_failed <= 4);
  }
}

TEST_CASE("a bug in the engine's own thread ends every sequence and every lease, then the engine") {
  for (const auto bug :
       {BrokenRunner::Bug::info_throws, BrokenRunner::Bug::info_throws_no_exception}) {
    for (int at = 1; at <= 6; ++at) {
      BrokenScene scene(bug, at);
      CHECK(scene.Count(ErrorCode::kEngineDead) > 0);
      CHECK(!scene.host.engine().Stats().is_alive);
      scene.CheckClean();
      CHECK_THROWS_AS(scene.host.Submit(TestText(3, 1, 2)), Error);
      CHECK_THROWS_AS(scene.host.engine().WaitOutputs({}), Error);
      scene.host.engine().Shutdown();
    }
  }
}

}  // namespace
}  // namespace pyvlm
