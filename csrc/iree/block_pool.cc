#include "csrc/iree/block_pool.h"

#include <malloc.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>

namespace pyvlm {
namespace {

constexpr size_t kHugePageBytes = size_t{2} << 20;
constexpr size_t kPageBytes = 4096;
constexpr size_t kAlignment = 64;

size_t RoundUp(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

size_t MappedSize(size_t bytes) {
  return RoundUp(bytes, bytes >= kHugePageBytes ? kHugePageBytes : kPageBytes);
}

// Fresh zeroed pages; blocks of huge-page size begin at a huge-page boundary.
void* Map(size_t size) {
  const bool huge = size >= kHugePageBytes;
  const size_t slack = huge ? kHugePageBytes : 0;
  void* mapped =
      mmap(nullptr, size + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  if (!huge) return mapped;
  auto address = reinterpret_cast<uintptr_t>(mapped);
  uintptr_t begin = RoundUp(address, kHugePageBytes);
  if (begin > address) munmap(mapped, begin - address);
  size_t tail = address + slack - begin;
  if (tail > 0) munmap(reinterpret_cast<void*>(begin + size), tail);
  void* block = reinterpret_cast<void*>(begin);
  madvise(block, size, MADV_HUGEPAGE);  // a wish: refused, the block works all the same
  return block;
}

// Memory of the map nodes runs out like any other: the callers are C, which no exception may cross.
template <typename Work>
bool Succeeds(Work&& work) noexcept {
  try {
    work();
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

void* AllocateSmall(size_t bytes, bool zeroed) {
  void* block = std::aligned_alloc(kAlignment, RoundUp(std::max<size_t>(bytes, 1), kAlignment));
  if (block != nullptr && zeroed) std::memset(block, 0, bytes);
  return block;
}

iree_status_t Status(iree_status_code_t code) {
  return reinterpret_cast<iree_status_t>(static_cast<uintptr_t>(code));
}

iree_status_t Control(void* self, iree_allocator_command_t command, const void* params,
                      void** inout_ptr) {
  auto* pool = static_cast<BlockPool*>(self);
  if (command == IREE_ALLOCATOR_COMMAND_FREE) {
    pool->Free(*inout_ptr);
    *inout_ptr = nullptr;
    return Status(IREE_STATUS_OK);
  }
  if (command != IREE_ALLOCATOR_COMMAND_MALLOC && command != IREE_ALLOCATOR_COMMAND_CALLOC &&
      command != IREE_ALLOCATOR_COMMAND_REALLOC) {
    return Status(IREE_STATUS_UNIMPLEMENTED);
  }
  size_t bytes = static_cast<const iree_allocator_alloc_params_t*>(params)->byte_length;
  if (bytes == 0) return Status(IREE_STATUS_INVALID_ARGUMENT);
  void* block = command == IREE_ALLOCATOR_COMMAND_REALLOC
                    ? pool->Reallocate(*inout_ptr, bytes)
                    : pool->Allocate(bytes, command == IREE_ALLOCATOR_COMMAND_CALLOC);
  if (block == nullptr) return Status(IREE_STATUS_RESOURCE_EXHAUSTED);
  *inout_ptr = block;
  return Status(IREE_STATUS_OK);
}

}  // namespace

BlockPool::~BlockPool() {
  for (auto [size, block] : idle_) munmap(block, size);
}

// A recycled block may be larger than asked for by a quarter, so that a 100 MB block is not tied
// up by a small request; and as large as a fresh one would be, or a size just above a huge page
// would never find the block that it left.
void* BlockPool::TakeIdle(size_t bytes) noexcept {
  auto found = idle_.lower_bound(bytes);
  size_t most = std::max(bytes + bytes / 4, MappedSize(bytes));
  if (found == idle_.end() || found->first > most) return nullptr;
  auto [size, block] = *found;
  if (!Succeeds([&] { used_.emplace(block, size); })) return nullptr;
  idle_.erase(found);
  idle_bytes_ -= size;
  peak_bytes_ = std::max(peak_bytes_, used_bytes_ += size);
  return block;
}

void* BlockPool::Allocate(size_t bytes, bool zeroed) noexcept {
  if (bytes < kMinBlockBytes) return AllocateSmall(bytes, zeroed);
  if (bytes > std::numeric_limits<size_t>::max() / 2) return nullptr;
  {
    std::lock_guard lock(mutex_);
    if (void* block = TakeIdle(bytes)) {
      if (zeroed) std::memset(block, 0, kZeroedBytes);
      return block;
    }
  }
  size_t size = MappedSize(bytes);
  void* block = Map(size);
  if (block == nullptr) return nullptr;
  std::lock_guard lock(mutex_);
  if (!Succeeds([&] { used_.emplace(block, size); })) {
    munmap(block, size);
    return nullptr;
  }
  peak_bytes_ = std::max(peak_bytes_, used_bytes_ += size);
  return block;
}

void BlockPool::Free(void* block) noexcept {
  if (block == nullptr) return;
  size_t size = 0;
  {
    std::lock_guard lock(mutex_);
    auto found = used_.find(block);
    if (found != used_.end()) {
      size = found->second;
      used_.erase(found);
      used_bytes_ -= size;
      if (idle_bytes_ + size <= max_idle_bytes_ && Succeeds([&] { idle_.emplace(size, block); })) {
        idle_bytes_ += size;
        return;
      }
    }
  }
  if (size == 0) {
    std::free(block);
  } else {
    munmap(block, size);
  }
}

// Not realloc for small blocks: that would align the new one to 16 bytes.
void* BlockPool::Reallocate(void* block, size_t bytes) noexcept {
  if (block == nullptr) return Allocate(bytes, false);
  size_t size = 0;
  {
    std::lock_guard lock(mutex_);
    auto found = used_.find(block);
    if (found != used_.end()) size = found->second;
  }
  if (size == 0) size = malloc_usable_size(block);
  if (bytes <= size) return block;
  void* grown = Allocate(bytes, false);
  if (grown == nullptr) return nullptr;
  std::memcpy(grown, block, size);
  Free(block);
  return grown;
}

size_t BlockPool::idle_bytes() const {
  std::lock_guard lock(mutex_);
  return idle_bytes_;
}

size_t BlockPool::used_bytes() const {
  std::lock_guard lock(mutex_);
  return used_bytes_;
}

size_t BlockPool::peak_bytes() const {
  std::lock_guard lock(mutex_);
  return peak_bytes_;
}

iree_allocator_t BlockPool::allocator() { return {this, Control}; }

}  // namespace pyvlm
