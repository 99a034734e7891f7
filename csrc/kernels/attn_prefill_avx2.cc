// Writing a prompt's keys and values, and its causal attention over the cache.
#include "csrc/kernels/attention_avx2.h"
#include "csrc/kernels/attn_block_avx2.h"
#include "csrc/kernels/kernels_avx2.h"

namespace pyvlm::kernels::avx2 {
namespace {

// A unit is (block of queries, kv head); row r of its block is query r / group, head r % group.
template <typename W>
struct Prefill {
  const AttnPrefillParams<W>& p;
  size_t group, block_queries;

  explicit Prefill(const AttnPrefillParams<W>& params)
      : p(params),
        group(params.num_heads / params.num_kv_heads),
        block_queries(group * 8 >= kBlockRows ? 8 : kBlockRows / group) {}

  size_t num_blocks() const { return CeilDiv(p.num_rows, block_queries); }

  void LoadQueries(AttnBlock* block, size_t kv_head, size_t first_query, float* rotated) const {
    const float scale = FloatFromBits(static_cast<uint32_t>(p.scale_bits));
    for (size_t r = 0; r < block->num_rows; ++r) {
      const size_t query = first_query + r / group, head = kv_head * group + r % group;
      RotateRow(QkvRow(p, query) + head * p.head_dim,
                p.rope.data() + (p.start + query) * p.head_dim, p.head_dim, 1.0f, rotated);
      SetQuery(block, r, rotated, scale);
    }
  }

  void AttendToCache(const AttnBlock& block, size_t kv_head, size_t first_query) const {
    const size_t dim = p.head_dim, base = HeadOffset(p, p.slot, kv_head);
    const size_t first_position = p.start + first_query;
    const size_t end = first_position + CeilDiv(block.num_rows, group);
    for (size_t chunk = 0; chunk < end; chunk += kChunkKeys) {
      const W* k = p.k_cache.data() + base + chunk * dim;
      const W* v = p.v_cache.data() + base + chunk * dim;
      const size_t blind_queries = chunk > first_position ? chunk - first_position : 0;
      RunChunk(
          block, [=](size_t t) { return k + t * dim; }, [=](size_t t) { return v + t * dim; },
          Min(kChunkKeys, end - chunk), blind_queries * group / kTileRows * kTileRows,
          [&](size_t row) {
            const size_t visible = first_position + row / group + 1;
            return visible > chunk ? visible - chunk : 0;
          });
    }
  }

  void RunUnit(AttnBlock* block, size_t kv_head, size_t first_query) const {
    const size_t queries = Min(block_queries, p.num_rows - first_query);
    StartBlock(block, queries * group);
    LoadQueries(block, kv_head, first_query, block->scores);
    AttendToCache(*block, kv_head, first_query);
    for (size_t r = 0; r < block->num_rows; ++r) {
      const size_t query = first_query + r / group, head = kv_head * group + r % group;
      StoreBlockRow(*block, r, p.out.data() + (query * p.num_heads + head) * p.head_dim);
    }
  }
};

}  // namespace

template <typename W>
int KvWrite(void* params, void*, void*) {
  const auto& p = *static_cast<const KvWriteParams<W>*>(params);
  const Range range = Split(p.num_rows, p.share);
  for (size_t i = range.begin; i < range.end; ++i) {
    for (size_t head = 0; head < p.num_kv_heads; ++head) {
      WriteKeyValue(p, QkvRow(p, i), p.slot, head, p.start + i);
    }
  }
  return kOk;
}
template int KvWrite<Half>(void*, void*, void*);
template int KvWrite<float>(void*, void*, void*);

// Shares take every workgroup_count-th unit, from the last block (the longest) down.
template <typename W>
int AttnPrefill(void* params, void*, void*) {
  const auto& p = *static_cast<const AttnPrefillParams<W>*>(params);
  if (p.num_rows == 0) return kOk;
  const Prefill<W> prefill(p);
  AttnBlock block;
  if (!AllocateBlock(prefill.block_queries * prefill.group, p.head_dim, &block)) {
    return kOutOfMemory;
  }
  const size_t num_units = prefill.num_blocks() * p.num_kv_heads;
  for (size_t i = p.share.workgroup_id; i < num_units; i += p.share.workgroup_count) {
    const size_t unit = num_units - 1 - i;
    prefill.RunUnit(&block, unit % p.num_kv_heads, unit / p.num_kv_heads * prefill.block_queries);
  }
  return kOk;
}
template int AttnPrefill<Half>(void*, void*, void*);
template int AttnPrefill<float>(void*, void*, void*);

}  // namespace pyvlm::kernels::avx2
