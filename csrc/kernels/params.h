// Parameter blocks of the kernels, as IREE's bare-pointer calls pass them: one packed struct with,
// for each buffer, its base pointer and an offset in elements, then the scalars.
//
// Every kernel has the signature KernelFn, returns 0, or kOutOfMemory / kInvalidArgument, and
// computes the share `workgroup_id` of `workgroup_count` of the work. Shares of one call write
// disjoint outputs and may run on any threads in any order; any count gives the same bits.
// A row's result never depends on the other rows of the call.
//
// Letters: M rows, K inputs, N outputs of a matrix; D head dimension (a multiple of 8). W is the
// element type of matrices (weights or cache): Half or float, for weights also int8_t (bytes of the
// blocks of q8.h). Buffers may be aligned to their element only. Matrices are packed as pack.h or
// q8.h says. Caches: [layers, slots, kv heads, capacity, D].
#ifndef PYVLM_KERNELS_PARAMS_H_
#define PYVLM_KERNELS_PARAMS_H_

#include <cstddef>
#include <cstdint>

namespace pyvlm::kernels {

using KernelFn = int (*)(void* params, void* context, void* reserved);

inline constexpr int kOk = 0;
inline constexpr int kInvalidArgument = 3;
inline constexpr int kOutOfMemory = 8;

inline constexpr size_t kPanelRows = 16;

template <typename T>
struct Buffer {
  T* base;
  size_t offset;
  T* data() const { return base + offset; }
};

struct Share {
  size_t workgroup_id;
  size_t workgroup_count;
};

// out[i] = rows[row_index[i]] if has_rows and row_index[i] >= 0, else table row tokens[i];
// i < min(count, num_rows).
template <typename W>
struct EmbedParams {
  Buffer<const int32_t> tokens;
  Buffer<const int32_t> row_index;
  Buffer<const float> rows;
  Buffer<const W> table;
  Buffer<float> out;
  size_t num_rows, width, count, has_rows;
  Share share;
};

// y = x / sqrt(mean(x^2) + eps) * weight
struct RmsNormParams {
  Buffer<const float> x, weight;
  Buffer<float> y;
  size_t num_rows, width, eps_bits;
  Share share;
};

// y = (x - mean) / sqrt(variance + eps) * weight + bias
struct LayerNormParams {
  Buffer<const float> x, weight, bias;
  Buffer<float> y;
  size_t num_rows, width, eps_bits;
  Share share;
};

enum LinearFlags : size_t {
  kRmsNorm = 1,   // normalise x by norm_weight first (f16, f32: in every share)
  kResidual = 2,  // add the residual at the end
  kSwiGlu = 4,    // gate/up panels: y = silu(gate) * up, N/2 wide; not with kBias or kGelu
  kBias = 8,      // add bias
  kGelu = 16,     // tanh-approximated gelu, after the bias
};

// y[M, NO] = epilogue(x[M, K] * matrix[N, K]^T); NO = N/2 with kSwiGlu, else N.
template <typename W>
struct LinearParams {
  Buffer<const float> x, norm_weight;
  Buffer<const W> matrix;
  Buffer<const float> bias, residual;
  Buffer<float> y;
  size_t num_rows, in_size, out_size, flags, eps_bits;
  Share share;
};

// The same on rows x_row_offset.. of x and y_row_offset.. of y and residual.
template <typename W>
struct LinearRowsParams {
  Buffer<const float> x, norm_weight;
  Buffer<const W> matrix;
  Buffer<const float> bias, residual;
  Buffer<float> y;
  size_t num_rows, in_size, out_size, flags, eps_bits, x_row_offset, y_row_offset;
  Share share;
};

template <typename W>
static inline LinearParams<W> WithoutRowOffsets(const LinearRowsParams<W>& p) {
  const size_t y_width = (p.flags & kSwiGlu) != 0 ? p.out_size / 2 : p.out_size;
  LinearParams<W> linear{p.x,        p.norm_weight, p.matrix,   p.bias,  p.residual, p.y,
                         p.num_rows, p.in_size,     p.out_size, p.flags, p.eps_bits, p.share};
  linear.x.offset += p.x_row_offset * p.in_size;
  linear.y.offset += p.y_row_offset * y_width;
  linear.residual.offset += p.y_row_offset * y_width;
  return linear;
}

// Writes rotated keys and values of qkv rows [M, (heads + 2 kv_heads) * D] at positions start.. of
// one slot. Each rope row holds D/2 cosines, then D/2 sines.
template <typename W>
struct KvWriteParams {
  Buffer<const float> qkv;
  Buffer<W> k_cache, v_cache;
  Buffer<const float> rope;
  size_t layer, slot, start, num_rows, num_heads, num_kv_heads, head_dim, num_slots, capacity;
  Share share;
};

// Causal attention of rows at positions start + i over cache positions 0..start + i, which hold
// these rows already (KvWrite). Rotates the queries itself.
template <typename W>
struct AttnPrefillParams {
  Buffer<const float> qkv;
  Buffer<const W> k_cache, v_cache;
  Buffer<const float> rope;
  Buffer<float> out;
  size_t layer, slot, start, num_rows, num_heads, num_kv_heads, head_dim, num_slots, capacity,
      scale_bits;
  Share share;
};

// Row i: rotates q and k, writes K and V at positions[i] of slots[i], attends to 0..positions[i].
// Rows must not share a slot.
template <typename W>
struct AttnDecodeParams {
  Buffer<const float> qkv;
  Buffer<W> k_cache, v_cache;
  Buffer<const int32_t> slots, positions;
  Buffer<const float> rope;
  Buffer<float> out;
  size_t layer, num_rows, num_heads, num_kv_heads, head_dim, num_slots, capacity, scale_bits;
  Share share;
};

// Bidirectional attention over the patches of one tile, qkv [P, 3 * heads * D]. Patch (r, c) of the
// grid is a key if r < valid[0] and c < valid[1]; padding patches get an output, but are no keys.
struct AttnFullParams {
  Buffer<const float> qkv;
  Buffer<const int32_t> valid;
  Buffer<float> out;
  size_t num_patches, grid, num_heads, head_dim, scale_bits;
  Share share;
};

// x[r * grid + c] += position[table[valid[0]][r] * grid + table[valid[1]][c]] for valid patches,
// += position[0] for padding. table is i32[grid + 1, grid].
struct AddPositionParams {
  Buffer<float> x;
  Buffer<const float> position;
  Buffer<const int32_t> table, valid;
  size_t num_patches, grid, width;
  Share share;
};

// y[(r * grid/s + c)][(i * s + j) * width + d] = x[(r * s + i) * grid + c * s + j][d]
struct PixelShuffleParams {
  Buffer<const float> x;
  Buffer<float> y;
  size_t grid, width, factor;
  Share share;
};

template <typename W>
struct WidenParams {
  Buffer<const W> x;
  Buffer<float> y;
  size_t size;
  Share share;
};

struct Range {
  size_t begin, end;
};

// The contiguous part of `total` items that a share owns; parts differ by at most one item.
static inline Range Split(size_t total, const Share& share) {
  return {total * share.workgroup_id / share.workgroup_count,
          total * (share.workgroup_id + 1) / share.workgroup_count};
}

// First element of the [capacity, D] block of one kv head.
static inline size_t CacheOffset(size_t layer, size_t slot, size_t head, size_t num_slots,
                                 size_t num_kv_heads, size_t capacity, size_t head_dim) {
  return ((layer * num_slots + slot) * num_kv_heads + head) * capacity * head_dim;
}

}  // namespace pyvlm::kernels

#endif  // PYVLM_KERNELS_PARAMS_H_
