#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "csrc/engine/prepared_prefill.h"
#include "csrc/engine/types.h"

namespace pyvlm {

// What work costs on this device, in microseconds; measured by the runner when it is made.
// The scheduler only compares and adds these numbers.
struct RunnerCosts {
  double prefill_call = 0;           // fixed part of a chunk
  double prefill_token = 0;          // per position of a chunk
  double decode_call = 0;            // a whole step of full width
  std::vector<double> encode_stage;  // [num_stages], one tile through one stage
  double import_rows = 0;            // ready embeddings of one image
};

// Shape of the tower. A tile passes stages 0 .. num_stages-1 in order: patch embedding, groups of
// blocks, projection.
struct VisionInfo {
  int num_patches = 0;    // per tile, padding included
  int grid = 0;           // patches along one side of a tile
  int patch_dim = 0;      // values of a patch
  int rows_per_tile = 0;  // rows that the projection gives
  int num_stages = 0;
};

// Static facts about a loaded model.
struct RunnerInfo {
  int vocab_size = 0;
  int hidden_size = 0;
  int num_slots = 0;
  int capacity = 0;          // positions per slot
  int max_chunk = 0;         // positions per prefill call
  int max_decode_batch = 0;  // rows per decode call
  std::optional<VisionInfo> vision;
  RunnerCosts costs;
  // The loaded model itself. Rows made by one runner can be read by every runner that has the same.
  std::shared_ptr<const void> model;
};

// Names the rows of one image of one sequence, from its first encode call to ReleaseRows.
struct ImageKey {
  SeqId seq_id = 0;
  int image = 0;

  bool operator==(const ImageKey&) const = default;
  auto operator<=>(const ImageKey&) const = default;
};

// One stage of one tile. The units of an image come in order: tile by tile, stage by stage, each
// exactly once. Units of other images may come between them.
struct EncodeCall {
  ImageKey key;
  const ImageInput* input = nullptr;  // pixels; borrowed for the call
  int tile = 0;
  int stage = 0;
  int num_rows = 0;  // of the whole image = tiles * rows_per_tile
};

// `tokens.size()` positions from `start` on. Positions [0, start) of the slot were written by
// earlier chunks of the same sequence.
struct PrefillCall {
  SlotId slot = 0;
  int start = 0;
  std::span<const std::int32_t> tokens;
  std::span<const std::int32_t> row_index;  // -1 = embed the token, else row of `rows`
  std::optional<ImageKey> rows;             // the only image that row_index refers to
  bool wants_logits = false;                // false for all chunks but the last of a prompt
};

struct DecodeRow {
  SlotId slot = 0;
  std::int32_t token = 0;
  int position = 0;  // where the token is written; it attends to [0, position]
};

// Executes single calls on a device. It decides nothing: which call comes when is the scheduler's
// business. Synchronous: a call has finished, and its inputs are no longer read, on return; but
// ImportRows may keep reading its buffer until ReleaseRows of that key.
// Engine thread only; the constructor may run on any thread. No global locks, no Python.
// Errors: calls throw Error. kDeviceUnavailable says that the device is lost: the engine stops.
// Any other code, or any other exception, fails the sequences of that call alone: the runner must
// have left the cache of the other slots as it was, and Decode must be repeatable after a failure
// with any subset of its rows.
class Runner {
 public:
  virtual ~Runner() = default;

  // Constant over the runner's life. Any thread.
  virtual const RunnerInfo& info() const = 0;

  // Runs one stage; the first unit of an image allocates what the image needs.
  virtual void Encode(const EncodeCall& call) = 0;

  // Makes ready embeddings, or cached rows of the same model, the rows of `key` without a host
  // copy.
  virtual void ImportRows(ImageKey key, const ImageInput& input) = 0;

  // The rows of an image whose last unit has been encoded, to be kept past ReleaseRows. Null if
  // they are not complete, or for want of memory.
  virtual std::shared_ptr<const ImageRows> ShareRows(ImageKey key) noexcept = 0;

  // Logits [vocab_size] of the last position, empty unless wants_logits. Valid until the next
  // call of any kind.
  virtual std::span<const float> Prefill(const PrefillCall& call) = 0;

  // One token per row, rows of distinct slots, at most max_decode_batch. Logits
  // [rows.size(), vocab_size], valid until the next call of any kind.
  virtual std::span<const float> Decode(std::span<const DecodeRow> rows) = 0;

  // Frees the rows and any half-encoded state of an image. Unknown key: no-op. Never throws.
  virtual void ReleaseRows(ImageKey key) noexcept = 0;

 private:
  friend class RunnerClaim;
  std::atomic<bool> is_claimed_{false};
};

}  // namespace pyvlm
