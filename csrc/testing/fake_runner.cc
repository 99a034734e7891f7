#include "csrc/testing/fake_runner.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace pyvlm {
namespace {

std::uint64_t Mix(std::uint64_t state, std::uint64_t value) {
  state ^= value + 0x9e3779b97f4a7c15u + (state << 6) + (state >> 2);
  state = (state ^ (state >> 30)) * 0xbf58476d1ce4e5b9u;
  return state ^ (state >> 27);
}

std::uint64_t MixBytes(const void* data, std::size_t size) {
  std::uint64_t state = size;
  const auto* bytes = static_cast<const unsigned char*>(data);
  for (std::size_t i = 0; i < size; ++i) state = Mix(state, bytes[i]);
  return state;
}

std::uint64_t TileValue(const ImageInput& input, int tile) {
  const auto values = static_cast<std::size_t>(input.num_patches * input.patch_dim);
  const auto index = static_cast<std::size_t>(tile);
  const auto* pixels = static_cast<const float*>(input.data) + index * values;
  return Mix(MixBytes(pixels, values * sizeof(float)),
             MixBytes(input.valid.data() + 2 * index, 2 * sizeof(std::int32_t)));
}

std::uint64_t EmbeddingValue(const ImageInput& input, int row) {
  const std::size_t item = input.dtype == DType::f32 ? sizeof(float) : sizeof(std::uint16_t);
  const auto stride = static_cast<std::size_t>(input.hidden_size) * item;
  return MixBytes(static_cast<const char*>(input.data) + static_cast<std::size_t>(row) * stride,
                  stride);
}

class FakeRows : public ImageRows {
 public:
  FakeRows(const RunnerInfo& info, std::vector<std::uint64_t> values)
      : ImageRows(info.model, static_cast<int>(values.size()), info.hidden_size,
                  FakeRunner::kRowBytes * static_cast<std::int64_t>(values.size())),
        values_(std::move(values)) {}

  const std::vector<std::uint64_t>& values() const { return values_; }

 private:
  const std::vector<std::uint64_t> values_;
};

const std::vector<std::uint64_t>& CachedValues(const ImageInput& input) {
  return dynamic_cast<const FakeRows&>(*input.rows).values();
}

std::uint64_t TokenValue(std::int32_t token) { return Mix(7, static_cast<std::uint64_t>(token)); }

float Logit(std::uint64_t state, int id) {
  return static_cast<float>(Mix(state, static_cast<std::uint64_t>(id)) >> 40) * 0x1.0p-21f - 4.0f;
}

}  // namespace

FakeRunner::FakeRunner(RunnerInfo info) : info_(std::move(info)) {
  info_.model = std::make_shared<int>();
  cache_.assign(static_cast<std::size_t>(info_.num_slots),
                std::vector<std::uint64_t>(static_cast<std::size_t>(info_.capacity)));
}

RunnerInfo FakeRunner::SmallInfo(int num_slots, int capacity) {
  RunnerInfo info;
  info.vocab_size = 64;
  info.hidden_size = 4;
  info.num_slots = num_slots;
  info.capacity = capacity;
  info.max_chunk = 8;
  info.max_decode_batch = num_slots;
  info.vision =
      VisionInfo{.num_patches = 4, .grid = 2, .patch_dim = 3, .rows_per_tile = 2, .num_stages = 3};
  info.costs = {.prefill_call = 1000,
                .prefill_token = 500,
                .decode_call = 2000,
                .encode_stage = {1000, 4000, 2000},
                .import_rows = 100};
  return info;
}

void FakeRunner::Enter(bool is_decode) {
  std::unique_lock lock(gate_mutex_);
  const auto is_held = [&] { return is_paused_ || (is_decode && is_paused_at_decode_); };
  is_blocked_ = is_held();
  gate_changed_.notify_all();
  gate_changed_.wait(lock, [&] { return !is_held(); });
  is_blocked_ = false;
}

void FakeRunner::Pause() {
  const std::lock_guard lock(gate_mutex_);
  is_paused_ = true;
}

void FakeRunner::PauseAtDecode() {
  const std::lock_guard lock(gate_mutex_);
  is_paused_at_decode_ = true;
}

void FakeRunner::Resume() {
  const std::lock_guard lock(gate_mutex_);
  is_paused_ = is_paused_at_decode_ = false;
  gate_changed_.notify_all();
}

bool FakeRunner::WaitUntilBlocked(int timeout_ms) {
  std::unique_lock lock(gate_mutex_);
  return gate_changed_.wait_until(
      lock, std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms),
      [&] { return is_blocked_; });
}

void FakeRunner::Require(bool condition, const char* what) {
  if (condition) return;
  ++num_violations_;
  throw std::logic_error(what);
}

void FakeRunner::Encode(const EncodeCall& call) {
  Enter();
  const auto [entry, is_new] = images_.try_emplace(call.key);
  Rows& rows = entry->second;
  if (is_new) ++num_live_images_;
  Require(!rows.is_complete && call.tile == rows.tile && call.stage == rows.stage,
          "encode units out of order");
  if (call.stage == 0) rows.tile_value = TileValue(*call.input, call.tile);
  if (++rows.stage < info_.vision->num_stages) return;
  for (int row = 0; row < info_.vision->rows_per_tile; ++row) {
    rows.values.push_back(Mix(rows.tile_value, static_cast<std::uint64_t>(row)));
  }
  rows.stage = 0;
  ++rows.tile;
  rows.is_complete = static_cast<int>(rows.values.size()) == call.num_rows;
}

void FakeRunner::ImportRows(ImageKey key, const ImageInput& input) {
  Enter();
  const auto [entry, is_new] = images_.try_emplace(key);
  if (is_new) ++num_live_images_;
  Require(is_new, "rows imported twice");
  Rows& rows = entry->second;
  rows.is_complete = true;
  if (input.kind == ImageInput::Kind::cached) {
    Require(input.rows->model() == info_.model, "rows of another model");
    rows.values = CachedValues(input);
    return;
  }
  last_import_ = input.data;
  rows.borrowed = input;
}

std::shared_ptr<const ImageRows> FakeRunner::ShareRows(ImageKey key) noexcept {
  const auto found = images_.find(key);
  if (found == images_.end() || !found->second.is_complete) return nullptr;
  return std::make_shared<const FakeRows>(info_, found->second.values);
}

// f32 embeddings are read here, as a zero-copy import would: a host that frees them too early is
// seen by the address sanitizer.
std::uint64_t FakeRunner::RowValue(const Rows& rows, int index) const {
  if (rows.borrowed) return EmbeddingValue(*rows.borrowed, index);
  return rows.values.at(static_cast<std::size_t>(index));
}

std::span<const float> FakeRunner::Prefill(const PrefillCall& call) {
  Enter();
  const auto count = static_cast<int>(call.tokens.size());
  Require(count > 0 && count <= info_.max_chunk, "chunk of a wrong length");
  Require(call.start + count <= info_.capacity, "chunk beyond the capacity");
  const Rows* rows = nullptr;
  if (call.rows) {
    const auto found = images_.find(*call.rows);
    Require(found != images_.end() && found->second.is_complete, "rows are not ready");
    rows = &found->second;
  }
  std::vector<std::uint64_t>& cache = cache_.at(static_cast<std::size_t>(call.slot));
  for (int i = 0; i < count; ++i) {
    const auto index = static_cast<std::size_t>(i);
    const int row = call.row_index[index];
    Require(row < 0 || rows != nullptr, "a row of no image");
    cache.at(static_cast<std::size_t>(call.start + i)) =
        row < 0 ? TokenValue(call.tokens[index]) : RowValue(*rows, row);
  }
  if (!call.wants_logits) return {};
  logits_.resize(static_cast<std::size_t>(info_.vocab_size));
  WriteLogits(call.slot, call.start + count - 1, logits_.data());
  return logits_;
}

std::span<const float> FakeRunner::Decode(std::span<const DecodeRow> rows) {
  Enter(/*is_decode=*/true);
  Require(!rows.empty() && static_cast<int>(rows.size()) <= info_.max_decode_batch,
          "decode batch of a wrong width");
  const auto vocab_size = static_cast<std::size_t>(info_.vocab_size);
  logits_.resize(rows.size() * vocab_size);
  std::vector<bool> seen(static_cast<std::size_t>(info_.num_slots), false);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto slot = static_cast<std::size_t>(rows[i].slot);
    Require(!seen.at(slot), "a slot twice in a decode batch");
    seen[slot] = true;
    Require(rows[i].position < info_.capacity, "decode beyond the capacity");
    cache_[slot].at(static_cast<std::size_t>(rows[i].position)) = TokenValue(rows[i].token);
    WriteLogits(rows[i].slot, rows[i].position, logits_.data() + i * vocab_size);
  }
  return logits_;
}

void FakeRunner::WriteLogits(SlotId slot, int position, float* out) const {
  std::uint64_t state = 0;
  const std::vector<std::uint64_t>& cache = cache_[static_cast<std::size_t>(slot)];
  for (int i = 0; i <= position; ++i) state = Mix(state, cache[static_cast<std::size_t>(i)]);
  for (int id = 0; id < info_.vocab_size; ++id) out[id] = Logit(state, id);
}

void FakeRunner::ReleaseRows(ImageKey key) noexcept {
  num_live_images_ -= static_cast<int>(images_.erase(key));
}

std::vector<std::int32_t> FakeGreedyTokens(const PreparedPrefill& prefill, const RunnerInfo& info,
                                           int num_tokens) {
  std::uint64_t state = 0;
  for (int i = 0; i < prefill.num_positions(); ++i) {
    const auto index = static_cast<std::size_t>(i);
    const int row = prefill.row_index()[index];
    if (row < 0) {
      state = Mix(state, TokenValue(prefill.tokens()[index]));
      continue;
    }
    const auto span = std::find_if(prefill.image_spans().begin(), prefill.image_spans().end(),
                                   [&](const ImageSpan& candidate) { return i < candidate.end; });
    const ImageInput& input = prefill.images()[static_cast<std::size_t>(span->image)];
    if (input.kind == ImageInput::Kind::embeddings) {
      state = Mix(state, EmbeddingValue(input, row));
    } else if (input.kind == ImageInput::Kind::cached) {
      state = Mix(state, CachedValues(input).at(static_cast<std::size_t>(row)));
    } else {
      const int rows_per_tile = info.vision->rows_per_tile;
      state = Mix(state, Mix(TileValue(input, row / rows_per_tile),
                             static_cast<std::uint64_t>(row % rows_per_tile)));
    }
  }
  std::vector<std::int32_t> tokens;
  while (static_cast<int>(tokens.size()) < num_tokens) {
    int best = 0;
    for (int id = 1; id < info.vocab_size; ++id) {
      if (Logit(state, id) > Logit(state, best)) best = id;
    }
    tokens.push_back(best);
    state = Mix(state, TokenValue(best));
  }
  return tokens;
}

}  // namespace pyvlm
