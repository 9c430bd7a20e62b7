// Runs before attention with a boolean mask, on sm90. The kernel reads the mask once and classifies each tile of 64 x
// 64 pairs of a query row and a key: all pairs, no pairs or some pairs are visible. In the last case the kernel also
// writes a pattern, which has one bit per pair. sm90_mask_lists.cuh then builds lists of tiles in the form of a block
// mask. The attention kernels therefore handle only one form of mask: kernels/attention/block_mask.cuh.
//
// Shapes   as in Sm90MaskArgs, with any strides and lengths.
// Work     Each block processes 64 query rows and 512 keys. Each warp first reads 8 rows, 16 bytes per lane, and then
//          classifies one tile.
// Memory   Reads one byte for each pair inside the window. Writes one bit for each pair of those tiles that have a
//          pattern.
#pragma once

#include "../attention/block_mask.cuh"
#include "../attention/key_range.cuh"
#include "../common/element.cuh"
#include "../common/warp_reduce.cuh"
#include "../tiles/accumulator_mask.cuh"
#include "sm90_mask_args.cuh"

namespace attend {

constexpr int kMaskRowsOfWarp = 8;
constexpr int kMaskBytesOfLane = 16;
constexpr int kMaskLanesOfTile = 4;

// Returns a word whose bit i is set if byte i is not 0.
[[nodiscard]] __device__ __forceinline__ uint32 nonzero_bytes(const uint4& bytes) {
  const auto of_word = [](uint32 x) {
    const uint32 high_bits = (((x & 0x7f7f7f7fu) + 0x7f7f7f7fu) | x) & 0x80808080u;
    return (high_bits >> 7) * 0x01020408u >> 24;  // moves bits 0, 8, 16 and 24 to bits 24 to 27
  };
  return of_word(bytes.x) | of_word(bytes.y) << 4 | of_word(bytes.z) << 8 | of_word(bytes.w) << 12;
}

// A run of 16 adjacent keys of a mask row, as one bit per key. Bits beyond the last key are 0. The row may start at any
// address, so the code reads complete aligned 16-byte vectors and shifts their bits. It does not read vectors that
// reach outside the row, because that memory may be unmapped.
struct MaskRun {
  const unsigned char* at;
  int before, left;  // `before` counts the keys of the row before the run, and `left` the keys from the run's first key
                     // on. Both are limited to the length of two vectors

  [[nodiscard]] __device__ __forceinline__ int shift() const {
    return static_cast<int>(reinterpret_cast<uint64>(at)) & (kMaskBytesOfLane - 1);
  }
  [[nodiscard]] __device__ __forceinline__ bool is_inside() const {
    return before >= shift() && left >= (shift() == 0 ? kMaskBytesOfLane : 2 * kMaskBytesOfLane - shift());
  }
  [[nodiscard]] __device__ __forceinline__ uint4 vector(int number) const {
    return __ldg(reinterpret_cast<const uint4*>(at - shift()) + number);
  }
  [[nodiscard]] __device__ __forceinline__ uint32 by_bytes() const {
    uint32 bits = 0;
#pragma unroll
    for (int i = 0; i < kMaskBytesOfLane; ++i) {
      if (i < left && __ldg(at + i) != 0) bits |= 1u << i;
    }
    return bits;
  }
};

// Collects the bits of one row that a thread holds in an accumulator: moves bits 8 j + column and 8 j + column + 1 to
// bits 4 j and 4 j + 1, for each j from 0 to 7.
[[nodiscard]] __device__ __forceinline__ uint32 pairs_of_row(uint64 row, int column) {
  const auto of_half = [](uint32 x) {
    x &= 0x03030303u;
    x = (x | x >> 4) & 0x00ff00ffu;
    return (x | x >> 8) & 0xffffu;
  };
  const uint64 shifted = row >> column;
  return of_half(static_cast<uint32>(shifted)) | of_half(static_cast<uint32>(shifted >> 32)) << 16;
}

// Undoes pairs_of_row() for column 0: moves bits 4 j and 4 j + 1 to bits 8 j and 8 j + 1.
[[nodiscard]] __device__ __forceinline__ uint64 row_of_pairs(uint32 pairs) {
  const auto of_half = [](uint32 x) {
    x = (x | x << 8) & 0x00ff00ffu;
    return uint64{(x | x << 4) & 0x03030303u};
  };
  return of_half(pairs & 0xffffu) | of_half(pairs >> 16) << 32;
}

// Writes the pattern of a tile. The argument holds the tile as 64 rows with one bit per column. Each word has the bits
// of one thread of an accumulator. All lanes of a warp must call it.
__device__ __forceinline__ void write_pattern(uint32* words, const uint64* rows) {
#pragma unroll
  for (int i = 0; i < kPatternWords; i += kWarpThreads) {
    const int thread = i + static_cast<int>(threadIdx.x) % kWarpThreads;
    const int row = accumulator_row(thread), column = accumulator_column(thread);
    words[thread] = pairs_of_row(rows[row], column) | pairs_of_row(rows[row + kRowHalf], column) << 2;
  }
}

// Returns row `row` of a pattern, with one bit per column.
[[nodiscard]] __device__ __forceinline__ uint64 row_of_pattern(const uint32* words, int row) {
  uint64 bits = 0;
#pragma unroll
  for (int quarter = 0; quarter < 4; ++quarter) {
    const uint32 word = __ldg(words + row / 16 * kWarpThreads + row % 8 * 4 + quarter);
    bits |= row_of_pairs(word >> (row / 8 % 2 * 2) & 0x33333333u) << accumulator_column(quarter);
  }
  return bits;
}

// Transposes a matrix of 32 x 32 bits. Each lane passes the row with its index and gets the column with its index.
[[nodiscard]] __device__ __forceinline__ uint32 column_of_rows(uint32 row) {
  uint32 low = 0x0000ffffu;
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    const uint32 other = __shfl_xor_sync(kAllLanes, row, distance);
    row = (threadIdx.x & distance) != 0 ? (row & ~low) | (other >> distance & low)
                                        : (row & low) | (other & low) << distance;
    low ^= low << distance / 2;
  }
  return row;
}

// Returns the pattern number, kAllSeen or kNoneSeen of a tile in a second block mask, which is combined with the
// boolean mask.
[[nodiscard]] __device__ __forceinline__ int pattern_of_tile(const BlockMaskArgs& mask, int sequence, int head, int row,
                                                             int column) {
  constexpr int kWords = 2;  // an entry consists of the tile's number and its pattern
  const int64* bounds = bounds_of_list(mask, sequence, head, row);
  int64 place = __ldg(bounds), end = __ldg(bounds + 1);
  while (place < end) {  // binary search, because entries are sorted by tile number
    const int64 middle = (place + end) / 2;
    const int number = __ldg(mask.entries + middle * kWords);
    if (number == column) return __ldg(mask.entries + middle * kWords + 1);
    if (number < column) {
      place = middle + 1;
    } else {
      end = middle;
    }
  }
  return kNoneSeen;
}

// A tile of 64 x 64 pairs of a query row and a key. The argument `rows` of its functions points to the 64 rows of the
// calling warp's tile in shared memory. Each has one bit per key, which is 0 if the row or the key does not exist.
struct MaskTile {
  int head;  // batch entry * number of heads + head
  int row, column;

  // Returns kNoneSeen if no pair is visible, and kAllSeen if each existing row sees each existing key. Otherwise
  // returns the pattern number of this tile.
  [[nodiscard]] __device__ __forceinline__ int kind(const Sm90MaskArgs& args, const uint64* rows) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
    const int64 keys = args.seqlen_k - int64{column} * kPatternKeys;
    const uint64 all_keys = keys >= kPatternKeys ? ~uint64{0} : (uint64{1} << keys) - 1;
    bool has_all = true, has_any = false;
#pragma unroll
    for (int r = lane; r < kPatternKeys; r += kWarpThreads) {
      has_all &= rows[r] == all_keys || int64{row} * kPatternKeys + r >= args.seqlen_q;
      has_any |= rows[r] != 0;
    }
    if (!__any_sync(kAllLanes, has_any)) return kNoneSeen;
    if (__all_sync(kAllLanes, has_all)) return kAllSeen;
    return static_cast<int>(number(args));
  }
  [[nodiscard]] __device__ __forceinline__ int64 number(const Sm90MaskArgs& args) const {
    return (int64{head} * args.mask_rows + row) * args.tile_columns() + column;
  }

  // Clears the bits of pairs that the second block mask hides.
  __device__ __forceinline__ void see_too(const Sm90MaskArgs& args, uint64* rows) const {
    if (args.other.bounds == nullptr) return;
    const int sequence = head / static_cast<int>(args.num_heads), of_sequence = head % static_cast<int>(args.num_heads);
    const int pattern = pattern_of_tile(args.other, sequence, of_sequence, row, column);
    if (pattern == kAllSeen) return;
    const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
#pragma unroll
    for (int r = lane; r < kPatternKeys; r += kWarpThreads) {
      const uint64 seen =
          pattern == kNoneSeen ? 0 : row_of_pattern(args.other.patterns + int64{pattern} * kPatternWords, r);
      rows[r] &= seen;
    }
    __syncwarp();  // all lanes have written their rows, so any lane may read them
  }
};

// Returns the smaller of `count` and `most`, as an int.
[[nodiscard]] __device__ __forceinline__ int at_most(int64 count, int most) {
  return count > most ? most : static_cast<int>(count);
}

// Reads the mask rows of this warp as bits, for all keys of the block. Each lane reads kMaskBytesOfLane keys from `key`
// on, or nothing if is_wanted is false. Writes the bits of all tiles of the block to `tiles`.
template <int kStride>
__device__ __forceinline__ void read_mask_rows(const Sm90MaskArgs& args, const unsigned char* mask, int64 first_row,
                                               int64 key, bool is_wanted, uint64 (*tiles)[kStride]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  const int row_of_tile = static_cast<int>(threadIdx.x) / kWarpThreads * kMaskRowsOfWarp;
  const int64 row = first_row + row_of_tile;
  auto* const to = reinterpret_cast<Bits16*>(tiles[lane / kMaskLanesOfTile] + row_of_tile) + lane % kMaskLanesOfTile;
  const unsigned char* const from = mask + row * args.mask_stride.row + key;
  const int before = at_most(key, 2 * kMaskBytesOfLane), left = at_most(args.seqlen_k - key, 2 * kMaskBytesOfLane);
  // Number of this warp's rows that exist. It may be negative.
  const int rows = is_wanted ? at_most(args.seqlen_q - row, kMaskRowsOfWarp) : 0;
  const auto run = [&](int r) { return MaskRun{from + r * args.mask_stride.row, before, left}; };
  uint4 first[kMaskRowsOfWarp];  // all loads are issued before the first result is used
#pragma unroll
  for (int r = 0; r < kMaskRowsOfWarp; ++r) {
    first[r] = {};
    if (r < rows && run(r).is_inside()) first[r] = run(r).vector(0);
  }
#pragma unroll
  for (int r = 0; r < kMaskRowsOfWarp; ++r) {
    uint32 bits = nonzero_bytes(first[r]);
    const MaskRun of_row = run(r);
    if (r < rows && of_row.shift() != 0 && of_row.is_inside()) {
      bits = (bits | nonzero_bytes(of_row.vector(1)) << kMaskBytesOfLane) >> of_row.shift();
    }
    to[kMaskLanesOfTile * r] = static_cast<Bits16>(bits);
  }
#pragma unroll 1
  for (int r = 0; r < rows; ++r) {  // only a few lanes at the ends of rows execute this loop
    if (!run(r).is_inside()) to[kMaskLanesOfTile * r] = static_cast<Bits16>(run(r).by_bytes());
  }
}

// Grid: for each head and each row of tiles, one block per kMaskTilesOfBlock adjacent tiles. A block has
// kMaskTilesOfBlock warps, and each warp classifies one tile.
template <class Config>
__device__ void sm90_mask_tiles(const Sm90MaskArgs& args) {
  static_assert(Config::kThreads == kMaskTilesOfBlock * kWarpThreads);
  static_assert(kMaskTilesOfBlock * kMaskRowsOfWarp == kPatternKeys);
  constexpr int kStride = kPatternKeys + 1;  // padded by 1, so that lanes of different tiles write to different banks
  __shared__ uint64 of_rows[kMaskTilesOfBlock][kStride], of_keys[kMaskTilesOfBlock][kPatternKeys];
  const int runs = (args.tile_columns() + kMaskTilesOfBlock - 1) / kMaskTilesOfBlock;
  const int warp = static_cast<int>(threadIdx.x) / kWarpThreads, lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  const int first_column = static_cast<int>(blockIdx.x) % runs * kMaskTilesOfBlock;
  const MaskTile tile = {static_cast<int>(blockIdx.x) / runs / args.mask_rows,
                         static_cast<int>(blockIdx.x) / runs % args.mask_rows, first_column + warp};
  const int64 first_row = int64{tile.row} * kPatternKeys;
  const WindowMask window = {args.seqlen_q, args.seqlen_k, args.window_left, args.window_right};
  const int64 end_row = args.seqlen_q - first_row < kPatternKeys ? args.seqlen_q : first_row + kPatternKeys;
  const KeyRange seen =
      // All rows share these bits if mask_rows is 1, so no window limits them.
      args.mask_rows == 1 ? KeyRange{0, args.seqlen_k} : window.rows(first_row, end_row);
  const int64 first_key = int64{first_column} * kPatternKeys;
  const int64 key = first_key + lane * kMaskBytesOfLane;
  const int64 key_of_tile = first_key + lane / kMaskLanesOfTile * kPatternKeys;
  const bool is_wanted =
      // The window excludes only complete tiles, not single keys.
      key < args.seqlen_k && key_of_tile < seen.end && key_of_tile + kPatternKeys > seen.begin;
  const uint32 sequence = tile.head / args.num_heads, head = tile.head % args.num_heads;
  read_mask_rows<kStride>(args, args.mask + args.mask_stride.offset(sequence, head, 0), first_row, key, is_wanted,
                          of_rows);
  __syncthreads();  // the bits of all rows are written, so any warp may read them
  if (tile.column >= args.tile_columns()) return;
  uint64* const rows = of_rows[warp];
  tile.see_too(args, rows);
  const int kind = tile.kind(args, rows);
  if (lane == 0) args.kinds[tile.number(args)] = kind;
  if (kind < 0) return;
  if (args.patterns != nullptr) write_pattern(args.patterns + tile.number(args) * kPatternWords, rows);
  if (args.patterns_by_key == nullptr) return;
  uint64* const keys = of_keys[warp];
#pragma unroll
  for (int half = 0; half < 2; ++half) {  // first the lower, then the upper 32 keys
    const auto column = [&](int r) { return column_of_rows(static_cast<uint32>(rows[r + lane] >> 32 * half)); };
    const uint32 low = column(0), high = column(kWarpThreads);
    keys[half * kWarpThreads + lane] = low | uint64{high} << 32;
  }
  __syncwarp();  // all keys are written, so any lane may read them
  write_pattern(args.patterns_by_key + tile.number(args) * kPatternWords, keys);
}

}  // namespace attend
