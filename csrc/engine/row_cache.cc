#include "csrc/engine/row_cache.h"

#include <new>
#include <utility>

namespace pyvlm {

std::shared_ptr<const ImageRows> RowCache::Find(const std::string& key) {
  if (!is_on()) return nullptr;
  const std::lock_guard lock(mutex_);
  const auto found = index_.find(key);
  if (found == index_.end()) {
    ++stats_.num_misses;
    return nullptr;
  }
  ++stats_.num_hits;
  entries_.splice(entries_.begin(), entries_, found->second);
  return found->second->rows;
}

void RowCache::Insert(const std::string& key, std::shared_ptr<const ImageRows> rows) noexcept try {
  if (rows->num_bytes() > max_bytes_) return;
  Entries fresh;  // these two outlive the lock
  Entries evicted;
  fresh.push_front({key, std::move(rows)});
  const std::lock_guard lock(mutex_);
  if (is_closed_) return;
  const auto [indexed, is_new] = index_.try_emplace(key, fresh.begin());
  entries_.splice(entries_.begin(), is_new ? fresh : entries_, indexed->second);
  if (!is_new) return;
  // Nothing below can fail.
  stats_.num_bytes += entries_.front().rows->num_bytes();
  evicted = TakeEvictedLocked();
  stats_.num_entries = static_cast<std::int64_t>(entries_.size());
} catch (const std::bad_alloc&) {
  return;
}

RowCache::Entries RowCache::TakeEvictedLocked() noexcept {
  Entries evicted;
  while (stats_.num_bytes > max_bytes_) {
    const auto last = std::prev(entries_.end());
    index_.erase(last->key);
    stats_.num_bytes -= last->rows->num_bytes();
    ++stats_.num_evictions;
    evicted.splice(evicted.end(), entries_, last);
  }
  return evicted;
}

void RowCache::Close() {
  Entries dropped;  // outlives the lock
  const std::lock_guard lock(mutex_);
  is_closed_ = true;
  index_.clear();
  dropped = std::exchange(entries_, {});
  stats_.num_entries = stats_.num_bytes = 0;
}

RowCache::Stats RowCache::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

}  // namespace pyvlm
