#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "csrc/engine/image_rows.h"

namespace pyvlm {

// Rows of images that were encoded before, by keys that the host chose: the least recently used go
// first when their bytes exceed the budget. Whoever holds an entry keeps it past its eviction, so
// the device may hold more than the budget while prompts that use evicted rows live.
// Any thread. Rows are never dropped under the lock: to free them may cost a call of the device.
class RowCache {
 public:
  struct Stats {
    std::int64_t num_entries = 0;
    std::int64_t num_bytes = 0;
    std::uint64_t num_hits = 0;
    std::uint64_t num_misses = 0;
    std::uint64_t num_evictions = 0;
  };

  // 0 = off: nothing is kept, looked for or counted.
  explicit RowCache(std::int64_t max_bytes) : max_bytes_(max_bytes) {}

  bool is_on() const { return max_bytes_ > 0; }

  // Null if there is no such entry.
  std::shared_ptr<const ImageRows> Find(const std::string& key);

  // A key that is there keeps its rows, and counts as used: two sequences may have encoded the same
  // image. Rows beyond the whole budget, or for which memory is wanting, are not kept.
  void Insert(const std::string& key, std::shared_ptr<const ImageRows> rows) noexcept;

  // Drops every entry; nothing is kept from now on.
  void Close();

  Stats stats() const;

 private:
  struct Entry {
    std::string key;
    std::shared_ptr<const ImageRows> rows;
  };
  using Entries = std::list<Entry>;

  Entries TakeEvictedLocked() noexcept;

  const std::int64_t max_bytes_;
  mutable std::mutex mutex_;
  // All guarded by mutex_.
  Entries entries_;  // most recently used first
  std::unordered_map<std::string, Entries::iterator> index_;
  bool is_closed_ = false;
  Stats stats_;
};

}  // namespace pyvlm
