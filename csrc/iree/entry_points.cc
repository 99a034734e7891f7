#include "csrc/iree/entry_points.h"

#include <limits>

#include "csrc/base/error.h"

namespace pyvlm {
namespace {

[[noreturn]] void Reject(const std::string& field, const std::string& reason) {
  throw Error(ErrorCode::kProgramMismatch, "model spec: " + field + " " + reason);
}

void CheckPositive(const std::string& field, int64_t value) {
  if (value <= 0 || value > std::numeric_limits<int32_t>::max()) {
    Reject(field, "must be positive and fit in 32 bits, not " + std::to_string(value));
  }
}

void CheckEntries(const std::string& field, const std::vector<EntryPoint>& entries,
                  int64_t max_size, int64_t capacity) {
  if (entries.empty()) Reject(field, "has no entry point");
  for (const EntryPoint& entry : entries) {
    if (entry.function.empty()) Reject(field, "has an entry point without a name");
    CheckPositive(entry.function + ".size", entry.size);
    CheckPositive(entry.function + ".context", entry.context);
    if (entry.size > max_size) Reject(entry.function, "is wider than " + std::to_string(max_size));
    if (entry.context > capacity) Reject(entry.function, "has a context beyond the capacity");
  }
}

void CheckVision(const VisionSpec& vision) {
  CheckPositive("vision.num_patches", vision.num_patches);
  CheckPositive("vision.grid", vision.grid);
  CheckPositive("vision.patch_dim", vision.patch_dim);
  CheckPositive("vision.hidden_size", vision.hidden_size);
  CheckPositive("vision.rows_per_tile", vision.rows_per_tile);
  CheckPositive("vision.num_block_groups", vision.num_block_groups);
  if (vision.num_patches != vision.grid * vision.grid) {
    Reject("vision.num_patches", "must be the square of vision.grid");
  }
}

void CheckCacheSize(const ModelSpec& spec) {
  int64_t bytes = ByteSize(spec.kv_type);
  for (int64_t factor :
       {spec.num_layers, spec.num_slots, spec.num_kv_heads, spec.capacity, spec.head_dim}) {
    if (__builtin_mul_overflow(bytes, factor, &bytes)) Reject("the KV cache", "is too large");
  }
}

}  // namespace

void Validate(const ModelSpec& spec) {
  CheckPositive("hidden_size", spec.hidden_size);
  CheckPositive("vocab_size", spec.vocab_size);
  CheckPositive("num_layers", spec.num_layers);
  CheckPositive("num_heads", spec.num_heads);
  CheckPositive("num_kv_heads", spec.num_kv_heads);
  CheckPositive("head_dim", spec.head_dim);
  if (spec.num_heads % spec.num_kv_heads != 0) {
    Reject("num_heads", "must be a multiple of num_kv_heads");
  }
  CheckPositive("num_slots", spec.num_slots);
  CheckPositive("capacity", spec.capacity);
  CheckEntries("prefill", spec.prefill, spec.capacity, spec.capacity);
  CheckEntries("decode", spec.decode, spec.num_slots, spec.capacity);
  if (spec.vision) CheckVision(*spec.vision);
  CheckCacheSize(spec);
}

std::string VisionBlocksName(int64_t group) { return "vision_blocks_" + std::to_string(group); }

std::vector<Signature> RequiredFunctions(const ModelSpec& spec) {
  std::vector<Signature> functions;
  for (const EntryPoint& entry : spec.prefill) {
    // tokens, row_index, rows, slot, start, count, k, v -> logits, k, v
    functions.push_back({entry.function, "rrrIIIrr", "rrr"});
  }
  for (const EntryPoint& entry : spec.decode) {
    // tokens, slots, positions, count, k, v -> logits, k, v
    functions.push_back({entry.function, "rrrIrr", "rrr"});
  }
  if (!spec.vision) return functions;
  functions.push_back({"rows_from_f16", "r", "r"});
  functions.push_back({"vision_embed", "rr", "r"});
  for (int64_t group = 0; group < spec.vision->num_block_groups; ++group) {
    functions.push_back({VisionBlocksName(group), "rr", "r"});
  }
  functions.push_back({"vision_project", "rrI", "r"});
  return functions;
}

}  // namespace pyvlm
