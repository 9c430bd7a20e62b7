// Numbers of sm80_forward that host and device must agree on: tiles, and the size of shared memory.
#pragma once

#include "../common/portable.cuh"
#include "../common/tile_sizes.cuh"
#include "../isa/smem_address.cuh"

namespace attend {

constexpr int kSm80RowsOfMma = 16;    // query rows of one mma product
constexpr int kSm80Stages = 2;        // buffers of k and of v: one is read while the other fills
constexpr int kSm80BlockBytes = 512;  // most bytes of the state of a block
constexpr int kSm80LargestHeadDim = 512;
constexpr int kSm80MostColumns = 256;  // columns of o in one block: a warp's 16 rows of them take 128 registers of each
                                       // lane

// The parameters of a Config, under the names of its constants.
struct Sm80ForwardTile {
  int warps;           // kWarps
  int row_groups;      // kRowGroups: a warp has this many times 16 rows, which share its operands of k and v
  int block_n;         // kBlockN: keys
  int q_in_registers;  // kQInRegisters: otherwise q's operands are read from shared memory for each tile of keys
  int column_parts;    // kColumnParts: parts of the columns of o, one for each block
  int min_blocks;      // blocks that must fit on a multiprocessor
  int puts_aside;      // kPutsAside: o is summed in pieces, because there are very many keys
  int speculates;      // kSpeculates: p is computed before the maximum is known; only if scores are unmodified
  int fuses;           // kFuses: p starts between the products of s; only if registers allow it
  int parks;           // kParks: m and l of the softmax are saved in shared memory, because registers are scarce
  int trails;          // kTrails: p v of a tile overlaps the exponentials of the next; only with kSpeculates
  int splits;          // kSplits: number of warps that share rows; each has a part of the keys of s and of the columns
                       // of o

  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int block_m() const {
    return warps / splits * row_groups * kSm80RowsOfMma;
  }
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int threads() const { return warps * 32; }
};

// Returns the columns of v and o in one block, rounded up to full operands.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int sm80_columns_v(int head_dim_v, int column_parts) {
  return round_up(ceil_div(head_dim_v, column_parts), 16);
}

// Returns the columns that a tile occupies in shared memory.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int sm80_width(int columns) {
  return round_up(columns, kPanelColumns);
}

// Returns the floats that a thread saves for each group of rows (sm80_long_sum.cuh): its o, and two maxima.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int sm80_values_aside(int columns_v) {
  return columns_v / 2 + 2;
}

// Returns the bytes that warps need to share rows (sm80_split.cuh): two tiles of p in 16 bits, a float of each warp for
// each row, and padding for alignment.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int sm80_shared_bytes(const Sm80ForwardTile& tile) {
  if (tile.splits == 1) return 0;
  return half_bytes(2 * tile.block_m(), tile.block_n) + float_bytes(tile.splits, tile.block_m()) + kSm80BlockBytes;
}

// Returns kSmemBytes, the sum of: q, which o overwrites; kSm80Stages times k and v; the block's work; m and l; saved
// sums of o.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int sm80_forward_smem_bytes(const Sm80ForwardTile& tile, int head_dim,
                                                                       int head_dim_v) {
  const int width_k = sm80_width(head_dim);
  const int width_v = sm80_width(sm80_columns_v(head_dim_v, tile.column_parts));
  const int q_or_o = half_bytes(tile.block_m(), width_k > width_v ? width_k : width_v);
  const int k_and_v = half_bytes(tile.block_n, width_k + width_v);
  const int values = sm80_values_aside(sm80_columns_v(head_dim_v, tile.column_parts));
  const int aside = tile.puts_aside != 0 ? float_bytes(tile.threads() * tile.row_groups, values) : 0;
  const int parked = tile.parks != 0 ? float_bytes(tile.threads(), 4 * tile.row_groups) : 0;
  const int tiles = q_or_o + kSm80Stages * k_and_v;
  return round_up(tiles + kSm80BlockBytes + parked + sm80_shared_bytes(tile), kSwizzleAtom) + aside;
}

// Sizes that follow from a Config.
template <class Config>
struct Sm80Shape {
  static constexpr int kRowsOfWarp = Config::kRowGroups * kSm80RowsOfMma;
  static constexpr int kBlockM = Config::kWarps / Config::kSplits * kRowsOfWarp;
  static constexpr int kKeysOfWarp = Config::kBlockN / Config::kSplits;  // keys of a tile whose s the warp computes
  static constexpr int kDepth = round_up(Config::kHeadDim, 16);          // columns of q and k that products sum over
  static constexpr int kColumnsV = sm80_columns_v(Config::kHeadDimV, Config::kColumnParts);
  static constexpr int kColumnsOfWarp = kColumnsV / Config::kSplits;  // columns of o of a warp
  static constexpr int kWidthK = sm80_width(Config::kHeadDim);
  static constexpr int kWidthV = sm80_width(kColumnsV);
};

}  // namespace attend
