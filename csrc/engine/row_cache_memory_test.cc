// Memory that runs out just as rows are to be kept.
#include <doctest/doctest.h>

#include <cstdlib>
#include <memory>
#include <new>
#include <string>

#include "csrc/engine/row_cache.h"
#include "csrc/testing/engine_host.h"
#include "csrc/testing/fake_runner.h"
#include "csrc/testing/prefills.h"

namespace {

thread_local int allocations_before_failure = -1;  // of this thread; -1 = none fails

}  // namespace

// For the whole test program: as the library's own, until a test asks for a failure.
// Not inlined: the compiler would see malloc's blocks given to delete, and free's taken from new.
[[gnu::noinline]] void* operator new(std::size_t size) {
  if (allocations_before_failure >= 0 && allocations_before_failure-- == 0) throw std::bad_alloc();
  if (void* block = std::malloc(size == 0 ? 1 : size)) return block;
  throw std::bad_alloc();
}
// Too, as a sanitizer's own would not give malloc's blocks to the delete below.
[[gnu::noinline]] void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  try {
    return operator new(size);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
[[gnu::noinline]] void operator delete(void* block) noexcept { std::free(block); }
[[gnu::noinline]] void operator delete(void* block, std::size_t) noexcept { std::free(block); }

namespace pyvlm {
namespace {

const std::string kKey = "longer than a string that has its text in itself";

std::shared_ptr<const ImageRows> Rows(std::int64_t bytes) {
  return std::make_shared<const ImageRows>(nullptr, 1, 1, bytes);
}

TEST_CASE("rows for which there is no memory are not kept, and the cache stays whole") {
  int before = 0;
  for (bool is_kept = false; !is_kept; ++before) {
    REQUIRE(before < 50);
    RowCache cache(30);
    cache.Insert("a", Rows(20));
    const auto rows = Rows(20);
    allocations_before_failure = before;
    cache.Insert(kKey, rows);
    allocations_before_failure = -1;
    is_kept = rows.use_count() > 1;
    CHECK(cache.stats().num_bytes == 20);
    CHECK(cache.stats().num_entries == 1);
    CHECK((cache.Find(kKey) == rows) == is_kept);
    CHECK((cache.Find("a") == nullptr) == is_kept);
  }
  CHECK(before > 1);
}

// The engine's thread fails to allocate once, after it has been given rows to keep.
class StarvingRunner : public FakeRunner {
 public:
  StarvingRunner() : FakeRunner(SmallInfo(2, 128)) {}

  std::shared_ptr<const ImageRows> ShareRows(ImageKey key) noexcept override {
    auto rows = FakeRunner::ShareRows(key);
    allocations_before_failure = 0;
    return rows;
  }
};

TEST_CASE("the sequence whose rows cannot be kept goes on, and so does the engine") {
  const auto runner = std::make_shared<StarvingRunner>();
  EngineHost host(runner, {.check_invariants = true, .image_cache_bytes = 1 << 20});
  const TestImage image = TestImage::Pixels(2, 1);
  auto fields = TestFields(5, 1, {image}, 6);
  fields.images[0] = image.input();
  fields.images[0].cache_key = kKey;
  const auto prefill = std::make_shared<const PreparedPrefill>(fields);
  for (int round = 0; round < 2; ++round) {
    const auto& received = host.Finish(host.Submit(prefill));
    CHECK(received.last.finish_reason == FinishReason::length);
    CHECK(received.token_ids == FakeGreedyTokens(*prefill, runner->info(), 6));
    CHECK(host.engine().CachedImage(kKey) == nullptr);
  }
  CHECK(host.num_leases() == 0);
  CHECK(runner->num_live_images() == 0);
}

}  // namespace
}  // namespace pyvlm
