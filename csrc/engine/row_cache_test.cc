#include "csrc/engine/row_cache.h"

#include <doctest/doctest.h>

#include <random>
#include <thread>
#include <vector>

namespace pyvlm {
namespace {

std::shared_ptr<const ImageRows> Rows(std::int64_t bytes) {
  return std::make_shared<const ImageRows>(nullptr, 1, 1, bytes);
}

TEST_CASE("the least recently used goes first, a look counts as use") {
  RowCache cache(30);
  for (const char* key : {"a", "b", "c"}) cache.Insert(key, Rows(10));
  CHECK(cache.Find("a") != nullptr);
  cache.Insert("d", Rows(10));
  CHECK(cache.Find("b") == nullptr);
  for (const char* key : {"a", "c", "d"}) CHECK(cache.Find(key) != nullptr);
  const RowCache::Stats stats = cache.stats();
  CHECK(stats.num_entries == 3);
  CHECK(stats.num_bytes == 30);
  CHECK(stats.num_hits == 4);
  CHECK(stats.num_misses == 1);
  CHECK(stats.num_evictions == 1);
}

TEST_CASE("a large entry may push out several, one beyond the budget is not kept") {
  RowCache cache(30);
  for (const char* key : {"a", "b", "c"}) cache.Insert(key, Rows(10));
  cache.Insert("large", Rows(25));
  CHECK(cache.stats().num_entries == 1);
  CHECK(cache.stats().num_bytes == 25);
  CHECK(cache.stats().num_evictions == 3);
  cache.Insert("larger", Rows(31));
  CHECK(cache.Find("larger") == nullptr);
  CHECK(cache.Find("large") != nullptr);
  cache.Insert("whole", Rows(30));
  CHECK(cache.stats().num_bytes == 30);
}

TEST_CASE("the first rows of a key stay") {
  RowCache cache(100);
  const auto first = Rows(10);
  cache.Insert("a", first);
  cache.Insert("a", Rows(20));
  CHECK(cache.Find("a") == first);
  CHECK(cache.stats().num_bytes == 10);
}

TEST_CASE("rows that are made once more count as used") {
  RowCache cache(20);
  const auto first = Rows(10);
  cache.Insert("a", first);
  cache.Insert("b", Rows(10));
  cache.Insert("a", Rows(10));
  cache.Insert("c", Rows(10));
  CHECK(cache.Find("a") == first);
  CHECK(cache.Find("b") == nullptr);
  CHECK(cache.Find("c") != nullptr);
}

TEST_CASE("rows outlive their eviction and the cache") {
  auto cache = std::make_unique<RowCache>(10);
  cache->Insert("a", Rows(10));
  std::weak_ptr<const ImageRows> watched;
  {
    const auto held = cache->Find("a");
    watched = held;
    cache->Insert("b", Rows(10));
    CHECK(cache->Find("a") == nullptr);
    CHECK(held->num_bytes() == 10);
  }
  CHECK(watched.expired());
  const auto held = cache->Find("b");
  cache.reset();
  CHECK(held.use_count() == 1);
}

TEST_CASE("off: nothing is kept or counted; closed: nothing is kept") {
  RowCache off(0);
  CHECK(!off.is_on());
  off.Insert("a", Rows(1));
  CHECK(off.Find("a") == nullptr);
  CHECK(off.stats().num_misses == 0);

  RowCache cache(10);
  const auto rows = Rows(10);
  cache.Insert("a", rows);
  cache.Close();
  CHECK(rows.use_count() == 1);
  CHECK(cache.stats().num_bytes == 0);
  CHECK(cache.stats().num_evictions == 0);
  cache.Insert("a", rows);
  CHECK(cache.Find("a") == nullptr);
}

TEST_CASE("property: bytes never exceed the budget and are those of the entries") {
  std::mt19937 random(3);
  const auto pick = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  RowCache cache(50);
  for (int i = 0; i < 2000; ++i) {
    const std::string key = std::to_string(pick(0, 20));
    if (pick(0, 1) == 0) {
      cache.Insert(key, Rows(pick(1, 60)));
    } else {
      cache.Find(key);
    }
    CHECK(cache.stats().num_bytes <= 50);
  }
  std::int64_t bytes = 0;
  for (int key = 0; key <= 20; ++key) {
    if (const auto rows = cache.Find(std::to_string(key))) bytes += rows->num_bytes();
  }
  CHECK(cache.stats().num_bytes == bytes);
}

TEST_CASE("several threads") {
  RowCache cache(40);
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 300; ++i) {
        const std::string key = std::to_string((i * (t + 3)) % 11);
        if (!cache.Find(key)) cache.Insert(key, Rows(10));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const RowCache::Stats stats = cache.stats();
  CHECK(stats.num_hits + stats.num_misses == 900);
  CHECK(stats.num_bytes == 10 * stats.num_entries);
}

}  // namespace
}  // namespace pyvlm
