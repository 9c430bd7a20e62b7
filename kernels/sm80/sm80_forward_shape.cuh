// Sizes of sm80_forward on which host and device must agree: tile sizes and bytes of shared memory.
#pragma once

#include "../common/portable.cuh"
#include "../common/tile_sizes.cuh"
#include "../isa/smem_address.cuh"

namespace attend {

constexpr int kSm80RowsOfMma = 16;    // query rows of one mma instruction
constexpr int kSm80Stages = 2;        // number of buffers of k and of v: one is read while the other is filled
constexpr int kSm80BlockBytes = 512;  // upper bound for the bytes of Sm80Block
constexpr int kSm80LargestHeadDim = 512;
constexpr int kSm80MostColumns = 256;  // maximum number of columns of o in one block: at this limit a warp's 16 rows
                                       // occupy 128 registers of each lane

// Tile sizes and pipeline settings of a Config. The comment on each field names the Config constant with the same
// value.
struct Sm80ForwardTile {
  int warps;           // kWarps: warps of a block
  int row_groups;      // kRowGroups: groups of 16 query rows per warp, which share its operands of k and v
  int block_n;         // kBlockN: number of keys of a tile
  int q_in_registers;  // kQInRegisters: 1 if q stays in registers; 0 if q's operands are read from shared memory for
                       // each key tile
  int column_parts;    // kColumnParts: number of blocks among which the columns of o are divided
  int min_blocks;      // number of blocks that must fit on a multiprocessor
  int puts_aside;      // kPutsAside: 1 if o is saved and restarted every kKeysOfSum keys, because there are very many
                       // keys
  int speculates;      // kSpeculates: 1 if p is computed before the row maximum is known, which requires unmodified
                       // scores
  int fuses;           // kFuses: 1 if the computation of p starts between the products of s, which needs more registers
  int parks;           // kParks: 1 if m and l of the softmax are saved in shared memory, because registers are scarce
  int trails;          // kTrails: 1 if p v of a tile overlaps with the exponentials of the next tile; requires
                       // kSpeculates
  int splits;          // kSplits: number of warps that share query rows. Each of them computes s of some keys of a
                       // tile, and some columns of o

  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int block_m() const {
    return warps / splits * row_groups * kSm80RowsOfMma;
  }
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int threads() const { return warps * 32; }
};

// Returns the number of columns of v and o in one block, rounded up to a multiple of 16.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int sm80_columns_v(int head_dim_v, int column_parts) {
  return round_up(ceil_div(head_dim_v, column_parts), 16);
}

// Returns the number of columns that a tile occupies in shared memory.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int sm80_width(int columns) {
  return round_up(columns, kPanelColumns);
}

// Returns the number of floats that a thread saves for each group of rows (sm80_long_sum.cuh). These are its entries of
// o, and the maxima of its two rows.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int sm80_values_aside(int columns_v) {
  return columns_v / 2 + 2;
}

// Returns the bytes of shared memory through which warps exchange data if they share rows (sm80_split.cuh). They hold
// two 16-bit tiles of p, one float per warp and row, and padding for alignment.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int sm80_shared_bytes(const Sm80ForwardTile& tile) {
  if (tile.splits == 1) return 0;
  return half_bytes(2 * tile.block_m(), tile.block_n) + float_bytes(tile.splits, tile.block_m()) + kSm80BlockBytes;
}

// Returns Config::kSmemBytes. The memory holds q (later overwritten by o), kSm80Stages buffers of k and v, the block's
// work, saved values of m and l, and saved sums of o.
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

// Sizes derived from a Config.
template <class Config>
struct Sm80Shape {
  static constexpr int kRowsOfWarp = Config::kRowGroups * kSm80RowsOfMma;
  static constexpr int kBlockM = Config::kWarps / Config::kSplits * kRowsOfWarp;
  // Number of keys of a tile for which a warp computes s.
  static constexpr int kKeysOfWarp = Config::kBlockN / Config::kSplits;
  // Number of columns of q and k over which products sum.
  static constexpr int kDepth = round_up(Config::kHeadDim, 16);
  static constexpr int kColumnsV = sm80_columns_v(Config::kHeadDimV, Config::kColumnParts);
  static constexpr int kColumnsOfWarp = kColumnsV / Config::kSplits;  // columns of o that a warp sums
  static constexpr int kWidthK = sm80_width(Config::kHeadDim);
  static constexpr int kWidthV = sm80_width(kColumnsV);
};

}  // namespace attend
