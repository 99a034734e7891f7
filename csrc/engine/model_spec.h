#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

// The static shape of a compiled bundle, as its manifest states it: plain data, no IREE, no Python.
namespace pyvlm {

enum class FloatType { kF16, kF32 };

constexpr int64_t ByteSize(FloatType type) { return type == FloatType::kF16 ? 2 : 4; }

// A compiled prefill (size = rows of a chunk) or decode function (size = rows of a batch).
// `context` bounds the cache positions that a row may attend to.
struct EntryPoint {
  std::string function;
  int64_t size = 0;
  int64_t context = 0;
};

struct VisionSpec {
  int64_t num_patches = 0;    // P, patches of one tile = grid * grid
  int64_t grid = 0;           // patches along a side
  int64_t patch_dim = 0;      // K = 3 * patch_size^2, values of a patch
  int64_t hidden_size = 0;    // Dv, width of the tower
  int64_t rows_per_tile = 0;  // R, decoder rows that one tile gives
  int64_t num_block_groups = 0;
};

struct ModelSpec {
  int64_t hidden_size = 0;
  int64_t vocab_size = 0;
  int64_t num_layers = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  FloatType kv_type = FloatType::kF16;
  int64_t num_slots = 0;
  int64_t capacity = 0;             // positions of one slot
  std::vector<EntryPoint> prefill;  // ascending by (size, context)
  std::vector<EntryPoint> decode;   // ascending by (size, context)
  bool all_logits = false;          // prefill returns the logits of every row of the chunk
  std::optional<VisionSpec> vision;

  // Bytes of the K buffer; the V buffer has as many.
  int64_t kv_bytes() const {
    return num_layers * num_slots * num_kv_heads * capacity * head_dim * ByteSize(kv_type);
  }
};

}  // namespace pyvlm
