// Portable attention: one query at a time, scores, softmax, weighted sum of values.
#include <algorithm>
#include <cmath>

#include "csrc/kernels/kernels_scalar.h"
#include "csrc/kernels/math_scalar.h"
#include "csrc/kernels/params.h"
#include "csrc/kernels/scratch.h"

namespace pyvlm::kernels::scalar {
namespace {

// Rows of keys and values, `stride` elements apart.
template <typename W>
struct Keys {
  const W* k;
  const W* v;
  size_t stride;
};

template <typename W>
float Dot(const float* query, const W* key, size_t head_dim) {
  float sum = 0;
  for (size_t d = 0; d < head_dim; ++d) sum += query[d] * ToFloat(key[d]);
  return sum;
}

// out = softmax(query . k) v over the `count` keys for which is_key(t); count > 0. `weights` has
// room for count floats.
template <typename W, typename IsKey>
void Attend(const float* query, const Keys<W>& keys, size_t count, size_t head_dim, IsKey is_key,
            float* weights, float* out) {
  float largest = -INFINITY, sum = 0;
  for (size_t t = 0; t < count; ++t) {
    weights[t] = is_key(t) ? Dot(query, keys.k + t * keys.stride, head_dim) : -INFINITY;
    largest = std::max(largest, weights[t]);
  }
  std::fill_n(out, head_dim, 0.0f);
  for (size_t t = 0; t < count; ++t) {
    if (!is_key(t)) continue;
    const float weight = std::exp(weights[t] - largest);
    const W* value = keys.v + t * keys.stride;
    sum += weight;
    for (size_t d = 0; d < head_dim; ++d) out[d] += weight * ToFloat(value[d]);
  }
  for (size_t d = 0; d < head_dim; ++d) out[d] /= sum;
}

template <typename W>
void StoreRow(const float* x, size_t head_dim, W* row) {
  for (size_t d = 0; d < head_dim; ++d) FromFloat(x[d], row + d);
}

// Writes position `position` of one slot and head from a qkv row. `rotated` has room for D floats.
template <typename P>
void WriteKeyValue(const P& p, const float* qkv, size_t slot, size_t head, size_t position,
                   float* rotated) {
  const size_t base =
      CacheOffset(p.layer, slot, head, p.num_slots, p.num_kv_heads, p.capacity, p.head_dim) +
      position * p.head_dim;
  const float* k = qkv + (p.num_heads + head) * p.head_dim;
  RotateRow(k, p.rope.data() + position * p.head_dim, p.head_dim, 1.0f, rotated);
  StoreRow(rotated, p.head_dim, p.k_cache.data() + base);
  StoreRow(k + p.num_kv_heads * p.head_dim, p.head_dim, p.v_cache.data() + base);
}

// The query heads of one kv head attend to positions 0..position.
template <typename W, typename P>
void AttendToCache(const P& p, const float* qkv, size_t slot, size_t kv_head, size_t position,
                   float* out, float* query) {
  const size_t group = p.num_heads / p.num_kv_heads;
  const size_t base =
      CacheOffset(p.layer, slot, kv_head, p.num_slots, p.num_kv_heads, p.capacity, p.head_dim);
  const Keys<W> keys{p.k_cache.data() + base, p.v_cache.data() + base, p.head_dim};
  for (size_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    RotateRow(qkv + head * p.head_dim, p.rope.data() + position * p.head_dim, p.head_dim,
              ScalarFromBits(p.scale_bits), query);
    Attend(
        query, keys, position + 1, p.head_dim, [](size_t) { return true; }, query + p.head_dim,
        out + head * p.head_dim);
  }
}

template <typename P>
const float* QkvRow(const P& p, size_t row) {
  return p.qkv.data() + row * (p.num_heads + 2 * p.num_kv_heads) * p.head_dim;
}

}  // namespace

template <typename W>
int KvWrite(void* params, void*, void*) {
  const auto& p = *static_cast<const KvWriteParams<W>*>(params);
  float* rotated = ThreadScratch(ScratchSlot::attention, p.head_dim);
  if (rotated == nullptr) return kOutOfMemory;
  const Range range = Split(p.num_rows, p.share);
  for (size_t i = range.begin; i < range.end; ++i) {
    for (size_t head = 0; head < p.num_kv_heads; ++head) {
      WriteKeyValue(p, QkvRow(p, i), p.slot, head, p.start + i, rotated);
    }
  }
  return kOk;
}
template int KvWrite<Half>(void*, void*, void*);
template int KvWrite<float>(void*, void*, void*);

template <typename W>
int AttnPrefill(void* params, void*, void*) {
  const auto& p = *static_cast<const AttnPrefillParams<W>*>(params);
  float* query = ThreadScratch(ScratchSlot::attention, p.head_dim + p.start + p.num_rows);
  if (query == nullptr) return kOutOfMemory;
  const Range range = Split(p.num_rows * p.num_kv_heads, p.share);
  for (size_t unit = range.begin; unit < range.end; ++unit) {
    const size_t row = unit / p.num_kv_heads;
    AttendToCache<W>(p, QkvRow(p, row), p.slot, unit % p.num_kv_heads, p.start + row,
                     p.out.data() + row * p.num_heads * p.head_dim, query);
  }
  return kOk;
}
template int AttnPrefill<Half>(void*, void*, void*);
template int AttnPrefill<float>(void*, void*, void*);

template <typename W>
int AttnDecode(void* params, void*, void*) {
  const auto& p = *static_cast<const AttnDecodeParams<W>*>(params);
  float* query = ThreadScratch(ScratchSlot::attention, p.head_dim + p.capacity);
  if (query == nullptr) return kOutOfMemory;
  const Range range = Split(p.num_rows * p.num_kv_heads, p.share);
  for (size_t unit = range.begin; unit < range.end; ++unit) {
    const size_t row = unit / p.num_kv_heads, kv_head = unit % p.num_kv_heads;
    const auto slot = static_cast<size_t>(p.slots.data()[row]);
    const auto position = static_cast<size_t>(p.positions.data()[row]);
    WriteKeyValue(p, QkvRow(p, row), slot, kv_head, position, query);
    AttendToCache<W>(p, QkvRow(p, row), slot, kv_head, position,
                     p.out.data() + row * p.num_heads * p.head_dim, query);
  }
  return kOk;
}
template int AttnDecode<Half>(void*, void*, void*);
template int AttnDecode<float>(void*, void*, void*);

int AttnFull(void* params, void*, void*) {
  const auto& p = *static_cast<const AttnFullParams*>(params);
  const size_t width = p.num_heads * p.head_dim;
  const auto rows = static_cast<size_t>(p.valid.data()[0]);
  const auto cols = static_cast<size_t>(p.valid.data()[1]);
  float* query = ThreadScratch(ScratchSlot::attention, p.head_dim + p.num_patches);
  if (query == nullptr) return kOutOfMemory;
  const auto is_key = [&](size_t t) { return t / p.grid < rows && t % p.grid < cols; };
  const Range range = Split(p.num_patches * p.num_heads, p.share);
  for (size_t unit = range.begin; unit < range.end; ++unit) {
    const size_t patch = unit / p.num_heads, head = unit % p.num_heads;
    const float* q = p.qkv.data() + patch * 3 * width + head * p.head_dim;
    for (size_t d = 0; d < p.head_dim; ++d) query[d] = q[d] * ScalarFromBits(p.scale_bits);
    const float* k = p.qkv.data() + width + head * p.head_dim;
    Attend(query, Keys<float>{k, k + width, 3 * width}, p.num_patches, p.head_dim, is_key,
           query + p.head_dim, p.out.data() + patch * width + head * p.head_dim);
  }
  return kOk;
}

}  // namespace pyvlm::kernels::scalar
