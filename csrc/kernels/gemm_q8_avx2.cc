// Linear with 8-bit weights for many rows (prefill, vision).
//
// A share is a range of row tiles. It takes its rows in blocks that fit the second cache, and
// normalises and quantises each once. All panels stream past a block: a piece of a panel is widened
// to int16 in the first cache and meets all tiles of rows; the sums [row][16] of a panel wait in
// cache between its pieces.
#include "csrc/kernels/linear_avx2.h"
#include "csrc/kernels/quantize_avx2.h"
#include "csrc/kernels/tile_q8_avx2.h"

namespace pyvlm::kernels::avx2 {
namespace {

constexpr size_t kMaxBlockValues = 160 * 1024;  // activations of a row block, 2 bytes each
constexpr size_t kPieceBlocks = 16;

// Rows of one block and its scratch.
struct RowBlock {
  QuantizedRows rows;
  size_t num_rows = 0;
  float* sums = nullptr;    // [num_rows][16]
  int8_t* piece = nullptr;  // kPieceBlocks wide blocks

  bool Allocate(size_t max_rows, size_t in_size) {
    sums = ThreadScratch(ScratchSlot::partial, max_rows * kPanelRows);
    void* wide = ThreadScratch(ScratchSlot::panel, kPieceBlocks * WideBlock::kBytes / 4);
    piece = static_cast<int8_t*>(wide);
    return sums != nullptr && wide != nullptr && rows.Allocate(max_rows, in_size);
  }
};

// Adds the products of `num_blocks` wide blocks, the first of which starts at input k.
template <int R>
void AddTile(const RowBlock& block, size_t first, size_t k, size_t num_blocks) {
  const int16_t* x = block.rows.values + first * block.rows.padded + k;
  const int8_t* wide = block.piece;
  for (size_t i = 0; i < num_blocks; ++i, x += kQ8Inputs, wide += WideBlock::kBytes) {
    BlockTile<R>(WideBlock{wide}, x, block.rows.padded, block.sums + first * kPanelRows);
  }
}

void AddPiece(const RowBlock& block, size_t k, size_t num_blocks, Ahead ahead) {
  using Form = void (*)(const RowBlock&, size_t, size_t, size_t);
  static constexpr Form kForms[kQ8TileRows] = {AddTile<1>, AddTile<2>, AddTile<3>,
                                               AddTile<4>, AddTile<5>, AddTile<6>};
  for (size_t first = 0; first < block.num_rows; first += kQ8TileRows) {
    ahead.Prefetch();
    const size_t rows = Min(kQ8TileRows, block.num_rows - first);
    kForms[rows - 1](block, first, k, num_blocks);
  }
}

// sums = products of all rows of the block with one panel.
void MultiplyPanel(const RowBlock& block, const int8_t* panel) {
  std::memset(block.sums, 0, block.num_rows * kPanelRows * sizeof(float));
  const size_t total = block.rows.padded / kQ8Inputs;
  for (size_t done = 0; done < total; done += kPieceBlocks) {
    const size_t count = Min(kPieceBlocks, total - done);
    for (size_t i = 0; i < count; ++i, panel += kQ8BlockBytes) {
      WidenBlock(PackedBlock{panel}, block.piece + i * WideBlock::kBytes);
    }
    // Panels follow each other: what comes next is the next piece or panel.
    AddPiece(block, done * kQ8Inputs, count,
             Ahead(panel, count * kQ8BlockBytes, CeilDiv(block.num_rows, kQ8TileRows)));
  }
}

void RunBlock(const LinearParams<int8_t>& p, const RowBlock& block, size_t first_row) {
  const Epilogue epilogue = EpilogueOf(p);
  const size_t num_panels = NumPanels(p);
  for (size_t n = 0; n < num_panels; ++n) {
    MultiplyPanel(block, p.matrix.data() + n * Q8PanelBytes(p.in_size));
    for (size_t m = 0; m < block.num_rows; ++m) {
      FinishScaled(epilogue, block.sums + m * kPanelRows, block.rows.scales[m], first_row + m, n);
    }
  }
}

}  // namespace

int LinearQ8Blocked(const LinearParams<int8_t>& p) {
  const Range tiles = Split(CeilDiv(p.num_rows, kQ8TileRows), p.share);
  if (tiles.begin == tiles.end) return kOk;
  const size_t begin = tiles.begin * kQ8TileRows;
  const size_t end = Min(tiles.end * kQ8TileRows, p.num_rows);
  const size_t limit = RoundUp(CeilDiv(kMaxBlockValues, Q8PaddedInputs(p.in_size)), kQ8TileRows);
  const size_t block_rows = BlockSize(end - begin, limit, kQ8TileRows);
  RowBlock block;
  if (!block.Allocate(block_rows, p.in_size)) return kOutOfMemory;
  for (size_t first = begin; first < end; first += block_rows) {
    block.num_rows = Min(block_rows, end - first);
    block.rows.Fill(p, first, block.num_rows);
    RunBlock(p, block, first);
  }
  return kOk;
}

}  // namespace pyvlm::kernels::avx2
