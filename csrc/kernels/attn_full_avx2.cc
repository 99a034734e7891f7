// Bidirectional attention over the patches of one tile. Padding keys are left out, not masked.
#include "csrc/kernels/attn_block_avx2.h"
#include "csrc/kernels/kernels_avx2.h"

namespace pyvlm::kernels::avx2 {
namespace {

// More than in prefill: every block packs all keys and values anew, from far caches.
constexpr size_t kFullRows = 2 * kBlockRows;

void RunUnit(const AttnFullParams& p, AttnBlock* block, size_t head, size_t first_patch) {
  const size_t dim = p.head_dim, width = p.num_heads * dim, stride = 3 * width;
  const auto cols = static_cast<size_t>(p.valid.data()[1]);
  const size_t num_keys = static_cast<size_t>(p.valid.data()[0]) * cols;
  const float scale = FloatFromBits(static_cast<uint32_t>(p.scale_bits));
  const float* qkv = p.qkv.data() + head * dim;
  StartBlock(block, Min(kFullRows, p.num_patches - first_patch));
  for (size_t r = 0; r < block->num_rows; ++r) {
    SetQuery(block, r, qkv + (first_patch + r) * stride, scale);
  }
  for (size_t chunk = 0; chunk < num_keys; chunk += kChunkKeys) {
    const size_t count = Min(kChunkKeys, num_keys - chunk);
    const float* rows[kChunkKeys];
    for (size_t t = 0; t < count; ++t) {
      const size_t key = chunk + t;
      rows[t] = qkv + width + (key / cols * p.grid + key % cols) * stride;
    }
    RunChunk(
        *block, [&](size_t t) { return rows[t]; }, [&](size_t t) { return rows[t] + width; }, count,
        0, [=](size_t) { return count; });
  }
  for (size_t r = 0; r < block->num_rows; ++r) {
    StoreBlockRow(*block, r, p.out.data() + (first_patch + r) * width + head * dim);
  }
}

}  // namespace

int AttnFull(void* params, void*, void*) {
  const auto& p = *static_cast<const AttnFullParams*>(params);
  const size_t num_blocks = CeilDiv(p.num_patches, kFullRows);
  const Range units = Split(num_blocks * p.num_heads, p.share);
  if (units.begin == units.end) return kOk;
  AttnBlock block;
  if (!AllocateBlock(kFullRows, p.head_dim, &block)) return kOutOfMemory;
  for (size_t unit = units.begin; unit < units.end; ++unit) {
    RunUnit(p, &block, unit / num_blocks, unit % num_blocks * kFullRows);
  }
  return kOk;
}

}  // namespace pyvlm::kernels::avx2
