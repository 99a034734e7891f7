#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "csrc/engine/runner.h"

namespace pyvlm {

// A model in a few lines, with the memory behaviour of a real one: a cache of slots, rows made
// from pixels or read from a host's embeddings, logits that depend on every position before. A
// wrong slot, position, row, order or a stale buffer gives other tokens. It also checks the order
// of calls that Runner promises; what it finds is counted in num_violations().
class FakeRunner : public Runner {
 public:
  explicit FakeRunner(RunnerInfo info);

  // A small model: `num_slots`, `capacity`, 64 ids, hidden size 4, chunks of 8, tiles of 4 patches
  // of 3 values, 2 rows a tile, 3 stages; costs in the order of milliseconds.
  static RunnerInfo SmallInfo(int num_slots, int capacity);

  const RunnerInfo& info() const override { return info_; }
  void Encode(const EncodeCall& call) override;
  void ImportRows(ImageKey key, const ImageInput& input) override;
  std::span<const float> Prefill(const PrefillCall& call) override;
  std::span<const float> Decode(std::span<const DecodeRow> rows) override;
  std::shared_ptr<const ImageRows> ShareRows(ImageKey key) noexcept override;
  void ReleaseRows(ImageKey key) noexcept override;

  // Any thread. While paused, the next call (the next decode call) blocks before it does anything.
  void Pause();
  void PauseAtDecode();
  void Resume();
  // Until a call is blocked by Pause; false after `timeout_ms`.
  bool WaitUntilBlocked(int timeout_ms);

  // Any thread. Images that hold rows or are half encoded.
  int num_live_images() const { return num_live_images_; }
  int num_violations() const { return num_violations_; }

  // The address that the last ImportRows was given.
  const void* last_import() const { return last_import_; }

  // Bytes that ShareRows says a row has.
  static constexpr std::int64_t kRowBytes = 16;

 private:
  struct Rows {
    std::vector<std::uint64_t> values;   // of encoded tiles
    std::uint64_t tile_value = 0;        // of the tile being encoded
    std::optional<ImageInput> borrowed;  // embeddings, read when a chunk needs them
    int tile = 0;
    int stage = 0;
    bool is_complete = false;
  };

  void Enter(bool is_decode = false);
  void Require(bool condition, const char* what);
  std::uint64_t RowValue(const Rows& rows, int index) const;
  void WriteLogits(SlotId slot, int position, float* out) const;

  RunnerInfo info_;
  std::vector<std::vector<std::uint64_t>> cache_;  // [num_slots][capacity]
  std::map<ImageKey, Rows> images_;
  std::vector<float> logits_;
  std::atomic<int> num_live_images_{0};
  std::atomic<int> num_violations_{0};
  std::atomic<const void*> last_import_{nullptr};

  std::mutex gate_mutex_;
  std::condition_variable gate_changed_;
  bool is_paused_ = false;            // guarded by gate_mutex_
  bool is_paused_at_decode_ = false;  // guarded by gate_mutex_
  bool is_blocked_ = false;           // guarded by gate_mutex_
};

// What FakeRunner's model generates greedily for `prefill`, computed without any of the engine:
// the reference of tests. Stop ids are not looked at. Cached rows are of a FakeRunner.
std::vector<std::int32_t> FakeGreedyTokens(const PreparedPrefill& prefill, const RunnerInfo& info,
                                           int num_tokens);

}  // namespace pyvlm
