// Many threads on one engine; the thread sanitizer looks on.
#include <doctest/doctest.h>

#include <atomic>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "csrc/engine/engine.h"
#include "csrc/testing/fake_runner.h"
#include "csrc/testing/prefills.h"

namespace pyvlm {
namespace {

// What all threads of a test have submitted and pulled.
class Ledger {
 public:
  void Open(LeaseId lease) {
    const std::lock_guard lock(mutex_);
    leases_.insert(lease);
  }
  void Reject(LeaseId lease) {
    const std::lock_guard lock(mutex_);
    leases_.erase(lease);
  }
  void Take(const Outputs& outputs) {
    const std::lock_guard lock(mutex_);
    for (const LeaseId lease : outputs.released) num_double_ += leases_.erase(lease) == 0 ? 1 : 0;
    for (const TokenOutput& output : outputs.tokens) {
      if (output.finish_reason != FinishReason::none) ++num_finishes_[output.seq_id];
    }
  }
  std::size_t num_finished() const {
    const std::lock_guard lock(mutex_);
    return num_finishes_.size();
  }
  void CheckSettled() const {
    const std::lock_guard lock(mutex_);
    CHECK(leases_.empty());
    CHECK(num_double_ == 0);
    for (const auto& [seq_id, count] : num_finishes_) CHECK(count == 1);
  }

 private:
  mutable std::mutex mutex_;
  std::set<LeaseId> leases_;
  std::map<SeqId, int> num_finishes_;
  int num_double_ = 0;
};

constexpr int kSubmitters = 4;
constexpr int kEach = 40;

TEST_CASE("concurrent submitters, cancellers, pullers and a watcher") {
  const auto runner = std::make_shared<FakeRunner>(FakeRunner::SmallInfo(3, 96));
  Engine engine(runner, {.step_budget_ms = 5, .check_invariants = true});
  Ledger ledger;
  std::atomic<LeaseId> last_lease{0};
  std::atomic<std::size_t> num_submitted{0};
  std::atomic<int> num_submitting{kSubmitters};
  const std::vector<TestImage> images{TestImage::Pixels(2, 1)};

  const auto submit = [&](unsigned seed) {
    std::mt19937 random(seed);
    for (int i = 0; i < kEach; ++i) {
      const auto prefill = random() % 2 == 0 ? TestPrefill(3, i, images, 6) : TestText(9, i, 6);
      const LeaseId lease = prefill->num_images() == 0 ? 0 : ++last_lease;
      if (lease != 0) ledger.Open(lease);
      const SeqId seq_id =
          engine.Submit(prefill, lease == 0 ? std::vector<LeaseId>{} : std::vector{lease});
      ++num_submitted;
      if (random() % 3 == 0) engine.Cancel(seq_id);
    }
    --num_submitting;
  };
  const auto pull = [&] {
    while (num_submitting > 0 || ledger.num_finished() < num_submitted) {
      ledger.Take(engine.WaitOutputs(std::chrono::milliseconds(5)));
    }
  };
  const auto watch = [&] {
    while (num_submitting > 0) {
      CHECK(engine.Stats().num_running <= 3);
      std::this_thread::yield();
    }
  };
  std::vector<std::thread> threads;
  for (unsigned seed = 0; seed < kSubmitters; ++seed) threads.emplace_back(submit, seed);
  threads.emplace_back(pull);
  threads.emplace_back(pull);
  threads.emplace_back(watch);
  for (std::thread& thread : threads) thread.join();

  CHECK(num_submitted == kSubmitters * kEach);
  CHECK(ledger.num_finished() == kSubmitters * kEach);
  ledger.CheckSettled();
  CHECK(runner->num_violations() == 0);
  CHECK(runner->num_live_images() == 0);
}

TEST_CASE("shutdown while others submit, cancel and wait") {
  for (int round = 0; round < 10; ++round) {
    const auto runner = std::make_shared<FakeRunner>(FakeRunner::SmallInfo(2, 96));
    const std::vector<TestImage> images{TestImage::Embeddings(3, 1)};
    Ledger ledger;
    std::atomic<std::size_t> num_submitted{0};
    std::atomic<LeaseId> last_lease{0};
    Engine engine(runner, {.check_invariants = true});
    const auto submit = [&] {
      const auto prefill = TestPrefill(4, 1, images, 30);
      while (true) {
        const LeaseId lease = ++last_lease;
        ledger.Open(lease);
        try {
          const SeqId seq_id = engine.Submit(prefill, {lease});
          ++num_submitted;
          if (seq_id % 2 == 0) engine.Cancel(seq_id);
        } catch (const Error& error) {
          ledger.Reject(lease);
          if (error.code() == ErrorCode::kDraining) return;
          std::this_thread::yield();  // queue_full
        }
      }
    };
    const auto pull = [&] {
      try {
        while (true) ledger.Take(engine.WaitOutputs(std::chrono::seconds(60)));
      } catch (const Error& error) {
        CHECK(error.code() == ErrorCode::kDraining);
      }
    };
    std::vector<std::thread> threads;
    threads.emplace_back(submit);
    threads.emplace_back(submit);
    threads.emplace_back(pull);
    while (num_submitted < 5) std::this_thread::yield();
    std::thread other([&] { engine.Shutdown(); });
    engine.Shutdown();
    other.join();
    for (std::thread& thread : threads) thread.join();
    CHECK(ledger.num_finished() == num_submitted);
    ledger.CheckSettled();
    CHECK(runner->num_live_images() == 0);
  }
}

TEST_CASE("an engine is destroyed with work in flight") {
  const auto runner = std::make_shared<FakeRunner>(FakeRunner::SmallInfo(2, 96));
  const std::vector<TestImage> images{TestImage::Pixels(2, 1)};
  for (int round = 0; round < 20; ++round) {
    Engine engine(runner, {});
    for (int i = 0; i < 5; ++i) engine.Submit(TestPrefill(4, i, images, 50));
  }
  CHECK(runner->num_live_images() == 0);
}

}  // namespace
}  // namespace pyvlm
