// Embedding, norms and widening with AVX2.
#include "csrc/kernels/kernels_avx2.h"
#include "csrc/kernels/norm_avx2.h"
#include "csrc/kernels/params.h"
#include "csrc/kernels/simd_avx2.h"

namespace pyvlm::kernels::avx2 {
namespace {

void CopyRow(const float* x, size_t width, float* y) {
  size_t k = 0;
  for (; k + 8 <= width; k += 8) Store8(Load8(x + k), y + k);
  for (; k < width; ++k) y[k] = x[k];
}

// y = (x - mean) * scale * weight + bias over `count` lanes of one vector.
PYVLM_INLINE __m256 Normalize(__m256 x, __m256 mean, __m256 scale, __m256 weight, __m256 bias) {
  return _mm256_fmadd_ps(_mm256_mul_ps(_mm256_sub_ps(x, mean), scale), weight, bias);
}

void LayerNormRow(const float* x, const float* weight, const float* bias, size_t width, float eps,
                  float* y) {
  const float count = static_cast<float>(width);
  const float center = SumRow(x, width) / count;
  const __m256 mean = _mm256_set1_ps(center);
  const __m256 scale = _mm256_set1_ps(1.0f / SqrtF(SumSquares(x, width, center) / count + eps));
  size_t k = 0;
  for (; k + 8 <= width; k += 8) {
    Store8(Normalize(Load8(x + k), mean, scale, Load8(weight + k), Load8(bias + k)), y + k);
  }
  if (k < width) {
    const size_t tail = width - k;
    StoreFirst(Normalize(LoadFirst(x + k, tail), mean, scale, LoadFirst(weight + k, tail),
                         LoadFirst(bias + k, tail)),
               y + k, tail);
  }
}

}  // namespace

template <typename W>
int Embed(void* params, void*, void*) {
  const auto& p = *static_cast<const EmbedParams<W>*>(params);
  const Range range = Split(Min(p.count, p.num_rows), p.share);
  for (size_t i = range.begin; i < range.end; ++i) {
    float* out = p.out.data() + i * p.width;
    const int32_t row = p.has_rows != 0 ? p.row_index.data()[i] : -1;
    if (row >= 0) {
      CopyRow(p.rows.data() + static_cast<size_t>(row) * p.width, p.width, out);
      continue;
    }
    const auto token = static_cast<size_t>(p.tokens.data()[i]);
    const W* lane = p.table.data() + token / kPanelRows * kPanelRows * p.width + token % kPanelRows;
    for (size_t k = 0; k < p.width; ++k) out[k] = Load1(lane + k * kPanelRows);
  }
  return kOk;
}
template int Embed<Half>(void*, void*, void*);
template int Embed<float>(void*, void*, void*);

int RmsNorm(void* params, void*, void*) {
  const auto& p = *static_cast<const RmsNormParams*>(params);
  const float eps = FloatFromBits(static_cast<uint32_t>(p.eps_bits));
  const Range range = Split(p.num_rows, p.share);
  for (size_t i = range.begin; i < range.end; ++i) {
    RmsNormRow(p.x.data() + i * p.width, p.weight.data(), p.width, eps, p.y.data() + i * p.width);
  }
  return kOk;
}

int LayerNorm(void* params, void*, void*) {
  const auto& p = *static_cast<const LayerNormParams*>(params);
  const float eps = FloatFromBits(static_cast<uint32_t>(p.eps_bits));
  const Range range = Split(p.num_rows, p.share);
  for (size_t i = range.begin; i < range.end; ++i) {
    LayerNormRow(p.x.data() + i * p.width, p.weight.data(), p.bias.data(), p.width, eps,
                 p.y.data() + i * p.width);
  }
  return kOk;
}

int RowsFromF16(void* params, void*, void*) {
  const auto& p = *static_cast<const WidenParams<Half>*>(params);
  const Range range = Split(p.size, p.share);
  const Half* x = p.x.data();
  float* y = p.y.data();
  size_t i = range.begin;
  for (; i + 8 <= range.end; i += 8) Store8(Load8(x + i), y + i);
  for (; i < range.end; ++i) y[i] = Load1(x + i);
  return kOk;
}

}  // namespace pyvlm::kernels::avx2
