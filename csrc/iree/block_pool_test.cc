#include "csrc/iree/block_pool.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>

namespace pyvlm {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

bool IsZero(const void* block, size_t bytes) {
  auto* data = static_cast<const uint8_t*>(block);
  for (size_t i = 0; i < bytes; ++i) {
    if (data[i] != 0) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("a freed block is handed out again, its head cleared") {
  BlockPool pool(64 * kMiB);
  void* first = pool.Allocate(5 * kMiB, true);
  REQUIRE(first != nullptr);
  CHECK(reinterpret_cast<uintptr_t>(first) % (2 * kMiB) == 0);
  CHECK(IsZero(first, 5 * kMiB));
  std::memset(first, 0xAB, 5 * kMiB);
  pool.Free(first);
  CHECK(pool.used_bytes() == 0);
  CHECK(pool.idle_bytes() == 6 * kMiB);
  void* second = pool.Allocate(5 * kMiB, true);
  CHECK(second == first);
  CHECK(IsZero(second, BlockPool::kZeroedBytes));
  CHECK(pool.idle_bytes() == 0);
  pool.Free(second);
}

TEST_CASE("a freed block of any size is handed out again to the same request") {
  for (size_t quarters : {1, 3, 5, 7, 9, 10, 11, 13, 15, 17, 25}) {
    BlockPool pool(64 * kMiB);
    void* first = pool.Allocate(quarters * kMiB / 4 + 64, false);
    pool.Free(first);
    void* second = pool.Allocate(quarters * kMiB / 4 + 64, false);
    CHECK(second == first);
    CHECK(pool.idle_bytes() == 0);
    pool.Free(second);
  }
}

TEST_CASE("a much larger block is not wasted on a small request") {
  BlockPool pool(64 * kMiB);
  void* large = pool.Allocate(32 * kMiB, false);
  pool.Free(large);
  void* small = pool.Allocate(4 * kMiB, false);
  CHECK(small != large);
  CHECK(pool.idle_bytes() == 32 * kMiB);
  pool.Free(small);
}

TEST_CASE("idle memory is bounded") {
  BlockPool pool(8 * kMiB);
  void* a = pool.Allocate(6 * kMiB, false);
  void* b = pool.Allocate(6 * kMiB, false);
  CHECK(pool.used_bytes() == 12 * kMiB);
  pool.Free(a);
  pool.Free(b);
  CHECK(pool.idle_bytes() == 6 * kMiB);
  CHECK(pool.used_bytes() == 0);
  CHECK(pool.peak_bytes() == 12 * kMiB);
}

TEST_CASE("small requests are aligned, zeroed and not pooled") {
  BlockPool pool(8 * kMiB);
  void* block = pool.Allocate(100, true);
  CHECK(reinterpret_cast<uintptr_t>(block) % 64 == 0);
  CHECK(IsZero(block, 100));
  CHECK(pool.used_bytes() == 0);
  pool.Free(block);
  CHECK(pool.idle_bytes() == 0);
}

TEST_CASE("growing keeps the contents") {
  BlockPool pool(8 * kMiB);
  auto* block = static_cast<uint8_t*>(pool.Allocate(kMiB, false));
  block[kMiB - 1] = 7;
  auto* grown = static_cast<uint8_t*>(pool.Reallocate(block, 4 * kMiB));
  CHECK(grown[kMiB - 1] == 7);
  pool.Free(grown);
}

TEST_CASE("growing a small block keeps contents and alignment") {
  BlockPool pool(8 * kMiB);
  auto* block = static_cast<uint8_t*>(pool.Allocate(100, false));
  for (uint8_t i = 0; i < 100; ++i) block[i] = i;
  for (size_t bytes : {200, 1000, 5000, 40000, 250000, 300000}) {
    block = static_cast<uint8_t*>(pool.Reallocate(block, bytes));
    REQUIRE(block != nullptr);
    CHECK(reinterpret_cast<uintptr_t>(block) % 64 == 0);
    for (uint8_t i = 0; i < 100; ++i) CHECK(block[i] == i);
  }
  CHECK(pool.Reallocate(block, SIZE_MAX / 2 - 4096) == nullptr);
  CHECK(block[99] == 99);
  pool.Free(block);
  CHECK(pool.used_bytes() == 0);
}

TEST_CASE("an impossible request fails as a status") {
  BlockPool pool(8 * kMiB);
  iree_allocator_t allocator = pool.allocator();
  iree_allocator_alloc_params_t params = {SIZE_MAX / 2 - 4096};
  void* block = nullptr;
  iree_status_t status =
      allocator.ctl(allocator.self, IREE_ALLOCATOR_COMMAND_MALLOC, &params, &block);
  CHECK(reinterpret_cast<uintptr_t>(status) == IREE_STATUS_RESOURCE_EXHAUSTED);
  CHECK(block == nullptr);
}

}  // namespace pyvlm
