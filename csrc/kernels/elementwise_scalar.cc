// Portable embedding, norms, positions and reordering.
#include <algorithm>
#include <cmath>

#include "csrc/kernels/kernels_scalar.h"
#include "csrc/kernels/math_scalar.h"
#include "csrc/kernels/params.h"
#include "csrc/kernels/q8.h"

namespace pyvlm::kernels::scalar {

namespace {

template <typename W>
float Element(const W* table, size_t width, size_t row, size_t k) {
  const W* panel = table + row / kPanelRows * kPanelRows * width;
  return ToFloat(panel[k * kPanelRows + row % kPanelRows]);
}

float Element(const int8_t* table, size_t width, size_t row, size_t k) {
  return Q8Element(table + row / kPanelRows * Q8PanelBytes(width), row % kPanelRows, k);
}

template <typename W>
int RunEmbed(const EmbedParams<W>& p) {
  const Range range = Split(std::min(p.count, p.num_rows), p.share);
  for (size_t i = range.begin; i < range.end; ++i) {
    float* out = p.out.data() + i * p.width;
    const int32_t row = p.has_rows != 0 ? p.row_index.data()[i] : -1;
    if (row >= 0) {
      std::copy_n(p.rows.data() + static_cast<size_t>(row) * p.width, p.width, out);
      continue;
    }
    const auto token = static_cast<size_t>(p.tokens.data()[i]);
    for (size_t k = 0; k < p.width; ++k) out[k] = Element(p.table.data(), p.width, token, k);
  }
  return kOk;
}

}  // namespace

template <typename W>
int Embed(void* params, void*, void*) {
  return RunEmbed(*static_cast<const EmbedParams<W>*>(params));
}
template int Embed<Half>(void*, void*, void*);
template int Embed<float>(void*, void*, void*);

int EmbedQ8(void* params, void*, void*) {
  return RunEmbed(*static_cast<const EmbedParams<int8_t>*>(params));
}

int RmsNorm(void* params, void*, void*) {
  const auto& p = *static_cast<const RmsNormParams*>(params);
  const Range range = Split(p.num_rows, p.share);
  for (size_t i = range.begin; i < range.end; ++i) {
    RmsNormRow(p.x.data() + i * p.width, p.weight.data(), p.width, ScalarFromBits(p.eps_bits),
               p.y.data() + i * p.width);
  }
  return kOk;
}

int LayerNorm(void* params, void*, void*) {
  const auto& p = *static_cast<const LayerNormParams*>(params);
  const float *weight = p.weight.data(), *bias = p.bias.data();
  const auto width = static_cast<double>(p.width);
  const Range range = Split(p.num_rows, p.share);
  for (size_t i = range.begin; i < range.end; ++i) {
    const float* x = p.x.data() + i * p.width;
    float* y = p.y.data() + i * p.width;
    double sum = 0, squares = 0;
    for (size_t k = 0; k < p.width; ++k) sum += x[k];
    const double mean = sum / width;
    for (size_t k = 0; k < p.width; ++k) squares += (x[k] - mean) * (x[k] - mean);
    const double scale = 1.0 / std::sqrt(squares / width + ScalarFromBits(p.eps_bits));
    for (size_t k = 0; k < p.width; ++k) {
      y[k] = static_cast<float>((x[k] - mean) * scale) * weight[k] + bias[k];
    }
  }
  return kOk;
}

int AddPosition(void* params, void*, void*) {
  const auto& p = *static_cast<const AddPositionParams*>(params);
  const auto valid_rows = static_cast<size_t>(p.valid.data()[0]);
  const auto valid_cols = static_cast<size_t>(p.valid.data()[1]);
  const int32_t* row_buckets = p.table.data() + valid_rows * p.grid;
  const int32_t* col_buckets = p.table.data() + valid_cols * p.grid;
  const Range range = Split(p.num_patches, p.share);
  for (size_t i = range.begin; i < range.end; ++i) {
    const size_t row = i / p.grid, col = i % p.grid;
    size_t bucket = 0;
    if (row < valid_rows && col < valid_cols) {
      bucket =
          static_cast<size_t>(row_buckets[row]) * p.grid + static_cast<size_t>(col_buckets[col]);
    }
    const float* position = p.position.data() + bucket * p.width;
    float* x = p.x.data() + i * p.width;
    for (size_t k = 0; k < p.width; ++k) x[k] += position[k];
  }
  return kOk;
}

int PixelShuffle(void* params, void*, void*) {
  const auto& p = *static_cast<const PixelShuffleParams*>(params);
  const size_t side = p.grid / p.factor;
  const Range range = Split(side * side, p.share);
  float* y = p.y.data() + range.begin * p.factor * p.factor * p.width;
  for (size_t out = range.begin; out < range.end; ++out) {
    for (size_t i = 0; i < p.factor; ++i) {
      const size_t row = out / side * p.factor + i, col = out % side * p.factor;
      y = std::copy_n(p.x.data() + (row * p.grid + col) * p.width, p.factor * p.width, y);
    }
  }
  return kOk;
}

int RowsFromF16(void* params, void*, void*) {
  const auto& p = *static_cast<const WidenParams<Half>*>(params);
  const Range range = Split(p.size, p.share);
  for (size_t i = range.begin; i < range.end; ++i) p.y.data()[i] = ToFloat(p.x.data()[i]);
  return kOk;
}

}  // namespace pyvlm::kernels::scalar
