#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <unordered_map>

#include "csrc/iree/capi.h"

namespace pyvlm {

// Memory of the local device's buffers. A call allocates its transient buffers anew each time, up
// to 100 MB of them; from malloc each would be mapped, page-faulted, cleared and unmapped again.
// The pool keeps freed blocks and hands them out again, and asks for huge pages, without touching
// the process-wide settings of malloc.
//
// Requests below kMinBlockBytes go to the system allocator. Any thread.
class BlockPool {
 public:
  static constexpr size_t kMinBlockBytes = 256 * 1024;

  explicit BlockPool(size_t max_idle_bytes) : max_idle_bytes_(max_idle_bytes) {}
  ~BlockPool();
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  // 64-byte aligned; null if memory is exhausted. If `zeroed`, the first kZeroedBytes (or all of a
  // smaller block) are zero: that covers the header that IREE keeps in front of a buffer, while
  // the contents of a new buffer are undefined by contract and clearing them would cost a pass.
  void* Allocate(size_t bytes, bool zeroed) noexcept;
  static constexpr size_t kZeroedBytes = 4096;

  // `block` from Allocate or Reallocate, or null.
  void Free(void* block) noexcept;
  // Aligned like a new block; null if memory is exhausted, `block` is unchanged then.
  void* Reallocate(void* block, size_t bytes) noexcept;

  size_t idle_bytes() const;
  size_t used_bytes() const;
  size_t peak_bytes() const;  // the largest used_bytes so far

  // The pool as an allocator of IREE; the pool must outlive all that is allocated from it.
  iree_allocator_t allocator();

 private:
  void* TakeIdle(size_t bytes) noexcept;

  const size_t max_idle_bytes_;
  mutable std::mutex mutex_;                // guards what follows
  std::unordered_map<void*, size_t> used_;  // blocks handed out, with their mapped sizes
  std::multimap<size_t, void*> idle_;       // by size
  size_t idle_bytes_ = 0;
  size_t used_bytes_ = 0;
  size_t peak_bytes_ = 0;
};

}  // namespace pyvlm
