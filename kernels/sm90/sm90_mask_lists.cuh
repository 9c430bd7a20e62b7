// Builds the lists of tiles over which the attention kernels iterate, on sm90. It runs after sm90_mask_tiles. The lists
// have the same form as the BlockMaskLists that the host builds for block masks. The forward pass uses one list per
// tile of query rows, and the backward pass one list per block of keys. Each list has room for all tiles, so no list
// has to wait until the length of another is known.
//
// Work     Each warp builds one list. Its lanes check 32 elements of the list at a time.
// Called   after sm90_mask_tiles. If additions to dq have a fixed order, sm90_mask_turns runs between these two
//          kernels.
#pragma once

#include "../attention/block_mask.cuh"
#include "../attention/key_range.cuh"
#include "../common/warp_reduce.cuh"
#include "sm90_backward_schedule.cuh"
#include "sm90_mask_args.cuh"

namespace attend {

// Reads the tiles of the heads that share a list.
struct MaskListTiles {
  const Sm90MaskArgs& args;
  int64 first_head;  // index of the first of these heads, counted through all sequences

  // Returns the pattern number, kAllSeen or kNoneSeen of a 64 x 64 tile. `head` is an index among the heads that share
  // the list.
  [[nodiscard]] __device__ __forceinline__ int kind(int head, int row, int column) const {
    if (row >= args.tile_rows() || column >= args.tile_columns()) return kNoneSeen;
    const WindowMask window = {args.seqlen_q, args.seqlen_k, args.window_left, args.window_right};
    const int64 first_row = int64{row} * kPatternKeys, first_key = int64{column} * kPatternKeys;
    const int64 end_row = args.seqlen_q - first_row < kPatternKeys ? args.seqlen_q : first_row + kPatternKeys;
    const KeyRange seen = window.rows(first_row, end_row);
    if (seen.end <= first_key || seen.begin >= first_key + kPatternKeys) return kNoneSeen;
    const int64 mask_row = args.mask_rows == 1 ? 0 : row;
    return __ldg(args.kinds + ((first_head + head) * args.mask_rows + mask_row) * args.tile_columns() + column);
  }
  // Returns the pattern of tile i among the tiles that an element of a list covers.
  [[nodiscard]] __device__ __forceinline__ int word(int list, int element, int i) const {
    const MaskListShape& shape = args.shape;
    const int column = i % shape.keys, row = i / shape.keys % shape.rows, head = i / shape.keys / shape.rows;
    if (shape.by_keys != 0) return kind(head, element, list * shape.keys + column);
    return kind(head, list * shape.rows + row, element * shape.keys + column);
  }
  [[nodiscard]] __device__ __forceinline__ bool sees_any(int list, int element) const {
    bool is_seen = false;
#pragma unroll 4
    for (int i = 0; i < args.shape.tiles(); ++i) {  // no early exit, so that the loads do not depend on each other
      is_seen |= word(list, element, i) != kNoneSeen;
    }
    return is_seen;
  }
};

// Writes the order of additions to dq. For each tile of query rows and each block of keys, it stores how many key
// blocks add to the tile before that key block. Grid: each block processes kMaskListsOfBlock tile rows, counted through
// all heads that have separate lists.
template <class Config>
__device__ void sm90_mask_turns(const Sm90MaskArgs& args) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  const int64 number = int64{blockIdx.x} * kMaskListsOfBlock + static_cast<int>(threadIdx.x) / kWarpThreads;
  const int64 heads = int64{args.sequences} * args.num_heads / args.shape.heads;
  if (number >= heads * args.tile_rows()) return;
  const auto blocks = static_cast<int>(args.shape.lists(args.tile_rows(), args.tile_columns()));
  const auto order = Sm90BackwardOrder::of(blocks, args.is_persistent != 0);
  const int row = static_cast<int>(number % args.tile_rows());
  const MaskListTiles tiles = {args, number / args.tile_rows() * args.shape.heads};
  int before = 0;
  for (int first = 0; first < blocks; first += kWarpThreads) {
    const int block = first + lane < blocks ? order.block_at(first + lane) : 0;
    const bool is_seen = first + lane < blocks && tiles.sees_any(block, row);
    const uint32 seen = __ballot_sync(kAllLanes, is_seen);
    if (is_seen) args.turns[number * blocks + block] = before + __popc(seen & ((1u << lane) - 1));
    before += __popc(seen);
  }
}

// Writes the lists. Grid: each block writes kMaskListsOfBlock lists, counted through all heads that have separate
// lists.
template <class Config>
__device__ void sm90_mask_lists(const Sm90MaskArgs& args) {
  const MaskListShape& shape = args.shape;
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  const int64 number = int64{blockIdx.x} * kMaskListsOfBlock + static_cast<int>(threadIdx.x) / kWarpThreads;
  const int64 heads = int64{args.sequences} * args.num_heads / shape.heads;
  const int64 lists = shape.lists(args.tile_rows(), args.tile_columns());
  if (number >= heads * lists) return;
  const auto elements = static_cast<int>(shape.elements(args.tile_rows(), args.tile_columns()));
  const auto list = static_cast<int>(number % lists);
  const MaskListTiles tiles = {args, number / lists * shape.heads};
  int64 at = number * elements;
  if (lane == 0) args.bounds[2 * number] = at;
  for (int first = 0; first < elements; first += kWarpThreads) {
    const int element = first + lane;
    const bool is_seen = element < elements && tiles.sees_any(list, element);
    const uint32 seen = __ballot_sync(kAllLanes, is_seen);
    if (is_seen) {
      int* const entry = args.entries + (at + __popc(seen & ((1u << lane) - 1))) * shape.entry_words();
      entry[0] = element;
      for (int i = 0; i < shape.tiles(); ++i) entry[1 + i] = tiles.word(list, element, i);
      if (shape.by_keys != 0) {
        const int64 row = number / lists * args.tile_rows() + element;
        entry[1 + shape.tiles()] = args.turns != nullptr ? args.turns[row * lists + list] : 0;
      }
    }
    at += __popc(seen);
  }
  if (lane == 0) args.bounds[2 * number + 1] = at;
}

}  // namespace attend
