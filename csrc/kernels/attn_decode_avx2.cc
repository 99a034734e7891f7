// Decode attention: one query position against its cached keys. A unit of work is (row, kv head);
// up to three query heads share every load of a key or value. Online softmax over chunks of keys;
// the loop ends at the row's own position, so there is no mask.
#include "csrc/kernels/attention_avx2.h"
#include "csrc/kernels/kernels_avx2.h"
#include "csrc/kernels/scratch.h"
#include "csrc/kernels/tile_avx2.h"

namespace pyvlm::kernels::avx2 {
namespace {

constexpr size_t kChunk = 256;   // keys; a multiple of 8
constexpr size_t kMaxGroup = 3;  // query heads per load
constexpr size_t kPrefetchKeys = 24;

template <typename W>
PYVLM_INLINE void PrefetchRow(const W* row, size_t head_dim) {
  for (size_t d = 0; d < head_dim; d += 64 / sizeof(W)) {
    _mm_prefetch(reinterpret_cast<const char*>(row + d), _MM_HINT_T0);
  }
}

// Partial dot products of one head with four keys.
struct FourSums {
  __m256 a, b, c, d;
};
template <int G>
struct HeadSums {
  FourSums sums;
  HeadSums<G - 1> next;
};
template <>
struct HeadSums<0> {};

template <int G>
PYVLM_INLINE void ClearSums(HeadSums<G>& heads) {
  if constexpr (G > 0) {
    const __m256 zero = _mm256_setzero_ps();
    heads.sums = {zero, zero, zero, zero};
    ClearSums(heads.next);
  }
}

template <int G>
PYVLM_INLINE void AddKeys(HeadSums<G>& heads, const FourSums& keys, const float* query,
                          size_t head_dim) {
  if constexpr (G > 0) {
    const __m256 q = Load8(query);
    heads.sums.a = _mm256_fmadd_ps(q, keys.a, heads.sums.a);
    heads.sums.b = _mm256_fmadd_ps(q, keys.b, heads.sums.b);
    heads.sums.c = _mm256_fmadd_ps(q, keys.c, heads.sums.c);
    heads.sums.d = _mm256_fmadd_ps(q, keys.d, heads.sums.d);
    AddKeys(heads.next, keys, query + head_dim, head_dim);
  }
}

template <int G>
PYVLM_INLINE void StoreScores(const HeadSums<G>& heads, float* scores) {
  if constexpr (G > 0) {
    const __m256 ab = _mm256_hadd_ps(heads.sums.a, heads.sums.b);
    const __m256 cd = _mm256_hadd_ps(heads.sums.c, heads.sums.d);
    const __m256 all = _mm256_hadd_ps(ab, cd);
    _mm_storeu_ps(scores, _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1)));
    StoreScores(heads.next, scores + kChunk);
  }
}

// scores[h][t] = query[h] . key t for `count` keys; scores past count are undefined. Missing keys
// of the last four repeat the last one. Values are fetched ahead while keys are read.
template <int G, typename W>
PYVLM_INLINE void Scores(const float* query, const W* k, const W* v, size_t count, size_t head_dim,
                         float* scores) {
  for (size_t t = 0; t < count; t += 4) {
    const W* k0 = k + t * head_dim;
    const W* k1 = t + 1 < count ? k0 + head_dim : k0;
    const W* k2 = t + 2 < count ? k1 + head_dim : k1;
    const W* k3 = t + 3 < count ? k2 + head_dim : k2;
    for (size_t j = 0; j < 4; ++j) {
      PrefetchRow(k0 + (kPrefetchKeys + j) * head_dim, head_dim);
      PrefetchRow(v + (t + j) * head_dim, head_dim);
    }
    HeadSums<G> heads;
    ClearSums(heads);
#pragma GCC unroll 2
    for (size_t d = 0; d < head_dim; d += 8) {
      const FourSums keys{Load8(k0 + d), Load8(k1 + d), Load8(k2 + d), Load8(k3 + d)};
      AddKeys(heads, keys, query + d, head_dim);
    }
    StoreScores(heads, scores + t);
  }
}

// out[h][0 .. 8 V) += sum over t of weights[h][t] * values[t]
template <int G, int V, typename W>
PYVLM_INLINE void AddValues(const float* weights, const W* v, size_t count, size_t head_dim,
                            float* out) {
  Accumulators<G, V> sums;
  Load(sums, out, head_dim, kPanelRows);
  for (size_t t = 0; t < count; ++t, v += head_dim) {
    Lanes<V> value;
    LoadLanes(value, v, kPanelRows);
    Step(sums, value, weights + t, kChunk);
  }
  Store(sums, out, head_dim, kPanelRows);
}

template <int G, typename W>
PYVLM_INLINE void AddAllValues(const float* weights, const W* v, size_t count, size_t head_dim,
                               float* out) {
  size_t d = 0;
  for (; d + 32 <= head_dim; d += 32) AddValues<G, 4>(weights, v + d, count, head_dim, out + d);
  for (; d < head_dim; d += 8) AddValues<G, 1>(weights, v + d, count, head_dim, out + d);
}

// Softmax state of one head: the largest score so far and the sum of weights relative to it.
struct Running {
  float largest, sum;
};

// Turns scores into weights relative to the new largest score and scales what was summed before.
// The row of scores has room up to a multiple of 8.
void UpdateSoftmax(float* scores, size_t count, size_t head_dim, Running* running, float* out) {
  const size_t padded = RoundUp(count, 8);
  for (size_t t = count; t < padded; ++t) scores[t] = -__builtin_inff();
  __m256 largest = _mm256_set1_ps(running->largest);
  for (size_t t = 0; t < padded; t += 8) largest = _mm256_max_ps(largest, Load8(scores + t));
  const __m256 shift = _mm256_set1_ps(Max(largest));
  const __m256 rescale = Exp(_mm256_sub_ps(_mm256_set1_ps(running->largest), shift));
  __m256 sum = _mm256_setzero_ps();
  for (size_t t = 0; t < padded; t += 8) {
    const __m256 weight = Exp(_mm256_sub_ps(Load8(scores + t), shift));
    sum = _mm256_add_ps(sum, weight);
    Store8(weight, scores + t);
  }
  running->largest = _mm256_cvtss_f32(shift);
  running->sum = running->sum * _mm256_cvtss_f32(rescale) + Sum(sum);
  for (size_t d = 0; d < head_dim; d += 8) Store8(_mm256_mul_ps(rescale, Load8(out + d)), out + d);
}

// The query heads [G][D] of one unit against one chunk of keys; state persists between chunks.
template <int G, typename W>
void RunChunk(const float* query, const W* k, const W* v, size_t count, size_t head_dim,
              float* scores, Running* running, float* out) {
  Scores<G>(query, k, v, count, head_dim, scores);
  for (size_t h = 0; h < G; ++h) {
    UpdateSoftmax(scores + h * kChunk, count, head_dim, running + h, out + h * head_dim);
  }
  AddAllValues<G>(scores, v, count, head_dim, out);
}

template <typename W>
void RunGroup(size_t heads, const float* query, const W* k, const W* v, size_t count,
              size_t head_dim, float* scores, Running* running, float* out) {
  switch (heads) {
    case 1:
      return RunChunk<1>(query, k, v, count, head_dim, scores, running, out);
    case 2:
      return RunChunk<2>(query, k, v, count, head_dim, scores, running, out);
    default:
      return RunChunk<3>(query, k, v, count, head_dim, scores, running, out);
  }
}

// Work space of one unit: queries and sums [group][D], scores [kMaxGroup][kChunk], states [group].
struct Space {
  float *query, *out, *scores;
  Running* running;
};

template <typename W>
void Attend(const AttnDecodeParams<W>& p, const Space& space, size_t slot, size_t kv_head,
            size_t position) {
  const size_t group = p.num_heads / p.num_kv_heads, dim = p.head_dim;
  const size_t base = HeadOffset(p, slot, kv_head);
  for (size_t h = 0; h < group; ++h) space.running[h] = {-__builtin_inff(), 0.0f};
  for (size_t i = 0; i < group * dim; ++i) space.out[i] = 0.0f;
  for (size_t first = 0; first <= position; first += kChunk) {
    const W* k = p.k_cache.data() + base + first * dim;
    const W* v = p.v_cache.data() + base + first * dim;
    const size_t count = Min(kChunk, position + 1 - first);
    for (size_t h = 0; h < group; h += kMaxGroup) {
      RunGroup(Min(kMaxGroup, group - h), space.query + h * dim, k, v, count, dim, space.scores,
               space.running + h, space.out + h * dim);
    }
  }
}

template <typename W>
void RunUnit(const AttnDecodeParams<W>& p, const Space& space, size_t row, size_t kv_head) {
  const size_t group = p.num_heads / p.num_kv_heads, dim = p.head_dim;
  const auto slot = static_cast<size_t>(p.slots.data()[row]);
  const auto position = static_cast<size_t>(p.positions.data()[row]);
  const float scale = FloatFromBits(static_cast<uint32_t>(p.scale_bits));
  const float* qkv = QkvRow(p, row);
  WriteKeyValue(p, qkv, slot, kv_head, position);
  for (size_t h = 0; h < group; ++h) {
    RotateRow(qkv + (kv_head * group + h) * dim, p.rope.data() + position * dim, dim, scale,
              space.query + h * dim);
  }
  Attend(p, space, slot, kv_head, position);
  float* out = p.out.data() + (row * p.num_heads + kv_head * group) * dim;
  for (size_t h = 0; h < group; ++h) {
    const __m256 inverse = _mm256_set1_ps(1.0f / space.running[h].sum);
    for (size_t d = h * dim; d < (h + 1) * dim; d += 8) {
      Store8(_mm256_mul_ps(inverse, Load8(space.out + d)), out + d);
    }
  }
}

}  // namespace

template <typename W>
int AttnDecode(void* params, void*, void*) {
  const auto& p = *static_cast<const AttnDecodeParams<W>*>(params);
  const Range units = Split(p.num_rows * p.num_kv_heads, p.share);
  if (units.begin == units.end) return kOk;
  const size_t group = p.num_heads / p.num_kv_heads;
  const size_t vectors = group * p.head_dim, scores = kMaxGroup * kChunk;
  float* scratch = ThreadScratch(ScratchSlot::attention, 2 * vectors + scores + 2 * group);
  if (scratch == nullptr) return kOutOfMemory;
  const Space space{scratch, scratch + vectors, scratch + 2 * vectors,
                    reinterpret_cast<Running*>(scratch + 2 * vectors + scores)};
  for (size_t unit = units.begin; unit < units.end; ++unit) {
    RunUnit(p, space, unit / p.num_kv_heads, unit % p.num_kv_heads);
  }
  return kOk;
}
template int AttnDecode<Half>(void*, void*, void*);
template int AttnDecode<float>(void*, void*, void*);

}  // namespace pyvlm::kernels::avx2
