// Linear for many rows (prefill, vision): blocks that fit the caches.
//
// The work is cut into cells (row block, panel), row blocks outermost; a share is a range of cells.
// Within a row block: its activations are packed once; panels go in groups; for each group and
// block of k, a panel is widened to f32 in the first cache and meets all tiles of rows. Partial
// sums [panel][row][16] stay in the second cache between blocks of k.
#include "csrc/kernels/linear_avx2.h"
#include "csrc/kernels/norm_avx2.h"
#include "csrc/kernels/scratch.h"
#include "csrc/kernels/tile_avx2.h"

namespace pyvlm::kernels::avx2 {
namespace {

constexpr size_t kMaxBlockRows = 120;  // a multiple of kTileRows
constexpr size_t kMaxBlockDepth = 320;
constexpr size_t kGroupPanels = 16;

// Packs up to kTileRows rows to [k][kTileRows]; missing rows are zero. A store of 8 lanes spills
// two into the next k, which overwrites them; only the last of 8 must not spill.
void PackTile(const float* x, size_t in_size, size_t num_rows, size_t depth, float* out) {
  size_t k = 0;
  const auto row = [&](size_t r) {
    return r < num_rows ? Load8(x + r * in_size + k) : _mm256_setzero_ps();
  };
  for (; k + 8 <= depth; k += 8, out += 8 * kTileRows) {
    __m256 r0 = row(0), r1 = row(1), r2 = row(2), r3 = row(3), r4 = row(4), r5 = row(5);
    __m256 r6 = _mm256_setzero_ps(), r7 = r6;
    Transpose(r0, r1, r2, r3, r4, r5, r6, r7);
    Store8(r0, out), Store8(r1, out + 6), Store8(r2, out + 12), Store8(r3, out + 18);
    Store8(r4, out + 24), Store8(r5, out + 30), Store8(r6, out + 36);
    _mm_storeu_ps(out + 42, _mm256_castps256_ps128(r7));
    _mm_storel_pi(reinterpret_cast<__m64*>(out + 46), _mm256_extractf128_ps(r7, 1));
  }
  for (; k < depth; ++k, out += kTileRows) {
    for (size_t r = 0; r < kTileRows; ++r) out[r] = r < num_rows ? x[r * in_size + k] : 0.0f;
  }
}

// Rows of one block and where its pieces lie in scratch.
struct Block {
  size_t num_rows, in_size, depth;  // depth: size of a full block of k
  float *activations, *panel, *partial;

  size_t padded_rows() const { return RoundUp(num_rows, kTileRows); }
  // Packed rows from row `first` (a multiple of kTileRows) on for the block of k that starts at k.
  float* packed(size_t k, size_t block_depth, size_t first) const {
    return activations + k * padded_rows() + first * block_depth;
  }
};

template <typename W>
bool Allocate(const LinearParams<W>& p, Block* block, size_t max_rows) {
  block->in_size = p.in_size;
  block->depth = BlockSize(p.in_size, kMaxBlockDepth, 8);
  const size_t rows = RoundUp(max_rows, kTileRows);
  block->activations = ThreadScratch(ScratchSlot::activations, rows * p.in_size);
  block->panel = ThreadScratch(ScratchSlot::panel, block->depth * kPanelRows);
  const size_t partial = rows * kPanelRows * kGroupPanels;
  const size_t normed = kTileRows * p.in_size;
  block->partial = ThreadScratch(ScratchSlot::partial, partial > normed ? partial : normed);
  return block->activations != nullptr && block->panel != nullptr && block->partial != nullptr;
}

template <typename W>
void PackBlock(const LinearParams<W>& p, const Block& block, size_t first_row) {
  const float eps = FloatFromBits(static_cast<uint32_t>(p.eps_bits));
  for (size_t first = 0; first < block.num_rows; first += kTileRows) {
    const size_t rows = Min(kTileRows, block.num_rows - first);
    const float* x = p.x.data() + (first_row + first) * p.in_size;
    if ((p.flags & kRmsNorm) != 0) {
      for (size_t r = 0; r < rows; ++r) {
        RmsNormRow(x + r * p.in_size, p.norm_weight.data(), p.in_size, eps,
                   block.partial + r * p.in_size);
      }
      x = block.partial;
    }
    for (size_t k = 0; k < p.in_size; k += block.depth) {
      const size_t depth = Min(block.depth, p.in_size - k);
      PackTile(x + k, p.in_size, rows, depth, block.packed(k, depth, first));
    }
  }
}

// A block of one panel in f32: widened into scratch, or in place if it is f32 already.
const float* WidenPanel(const Half* source, size_t depth, float* out) {
  for (size_t i = 0; i < depth * kPanelRows; i += 8) Store8(Load8(source + i), out + i);
  return out;
}
const float* WidenPanel(const float* source, size_t, float*) { return source; }

template <int R>
void PackedTile(const float* a, const float* b, size_t depth, bool resume, float* c) {
  Tile<R, 2, Rows::packed, false>(a, 1, b, 0, depth, resume, c, kPanelRows, 0);
}

void AnyTile(size_t rows, const float* a, const float* b, size_t depth, bool resume, float* c) {
  switch (rows) {
    case 1:
      return PackedTile<1>(a, b, depth, resume, c);
    case 2:
      return PackedTile<2>(a, b, depth, resume, c);
    case 3:
      return PackedTile<3>(a, b, depth, resume, c);
    case 4:
      return PackedTile<4>(a, b, depth, resume, c);
    case 5:
      return PackedTile<5>(a, b, depth, resume, c);
    default:
      return PackedTile<6>(a, b, depth, resume, c);
  }
}

// Adds the products of one block of k to the partial sums [rows][16] of one panel.
void MultiplyPanel(const Block& block, size_t k, size_t depth, const float* panel, float* partial,
                   Ahead ahead) {
  for (size_t first = 0; first < block.num_rows; first += kTileRows) {
    ahead.Prefetch();
    AnyTile(Min(kTileRows, block.num_rows - first), block.packed(k, depth, first), panel, depth,
            k > 0, partial + first * kPanelRows);
  }
}

template <typename W>
void RunGroup(const LinearParams<W>& p, const Block& block, size_t first_row, Range panels) {
  const size_t panel_sums = block.num_rows * kPanelRows;
  for (size_t k = 0; k < p.in_size; k += block.depth) {
    const size_t depth = Min(block.depth, p.in_size - k);
    for (size_t n = panels.begin; n < panels.end; ++n) {
      const W* source = p.matrix.data() + (n * p.in_size + k) * kPanelRows;
      // A prefetch past the matrix's end is no access.
      const W* next = n + 1 < panels.end
                          ? source + p.in_size * kPanelRows
                          : p.matrix.data() + (panels.begin * p.in_size + k + depth) * kPanelRows;
      MultiplyPanel(
          block, k, depth, WidenPanel(source, depth, block.panel),
          block.partial + (n - panels.begin) * panel_sums,
          Ahead(next, depth * kPanelRows * sizeof(W), CeilDiv(block.num_rows, kTileRows)));
    }
  }
  const Epilogue epilogue = EpilogueOf(p);
  const float* sums = block.partial;
  for (size_t n = panels.begin; n < panels.end; ++n) {
    for (size_t m = 0; m < block.num_rows; ++m, sums += kPanelRows) {
      Finish(epilogue, sums, first_row + m, n);
    }
  }
}

}  // namespace

template <typename W>
int LinearBlocked(const LinearParams<W>& p) {
  const size_t num_panels = NumPanels(p);
  const size_t block_rows = BlockSize(p.num_rows, kMaxBlockRows, kTileRows);
  const Range cells = Split(CeilDiv(p.num_rows, block_rows) * num_panels, p.share);
  if (cells.begin == cells.end) return kOk;
  Block block;
  if (!Allocate(p, &block, block_rows)) return kOutOfMemory;
  for (size_t cell = cells.begin; cell < cells.end;) {
    const size_t first_row = cell / num_panels * block_rows;
    const Range panels{cell % num_panels, Min(num_panels, cell % num_panels + cells.end - cell)};
    block.num_rows = Min(block_rows, p.num_rows - first_row);
    PackBlock(p, block, first_row);
    for (size_t n = panels.begin; n < panels.end; n += kGroupPanels) {
      RunGroup(p, block, first_row, Range{n, Min(n + kGroupPanels, panels.end)});
    }
    cell += panels.end - panels.begin;
  }
  return kOk;
}
template int LinearBlocked(const LinearParams<Half>&);
template int LinearBlocked(const LinearParams<float>&);

}  // namespace pyvlm::kernels::avx2
