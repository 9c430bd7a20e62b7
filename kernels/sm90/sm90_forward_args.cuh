// Parameter of sm90_forward. Shared by host and device.
#pragma once

#include "../common/args.cuh"

namespace attend {

// All maps have rank 4, (head_dim, seqlen, heads, batch), with the tensor's strides, boxes of (64, rows, 1, 1), the
// 128-byte swizzle, and zeros outside. Varlen: batch is 1, and seqlen is the number of tokens of all sequences.
struct Sm90ForwardArgs {
  static constexpr const char* kTypeName = "Sm90ForwardArgs";
  TensorMapArg q_map;      // kBlockM rows; any valid map if seqlen is 0, because nothing is loaded then
  TensorMapArg k_map;      // kBlockN rows
  TensorMapArg v_map;      // kBlockN rows, head_dim_v columns
  TensorMapArg o_map;      // 64 rows, head_dim_v columns
  TensorMapArg terms_map;  // kTermsTiles: kBlockM rows, seqlen_k columns; 1 head or batch entry if broadcast
  // Fields that the loop over tiles reads, at offsets that no option changes.
  uint32* next_tile;     // kSchedule == kDynamic: one number, 0 before each launch; otherwise null
  uint32 total_tiles;    // Sm90ForwardGrid::total_tiles
  uint32 row_tiles;      // of a head: Sm90ForwardGrid::row_tiles
  uint32 section_heads;  // query heads whose tiles run side by side: Sm90ForwardGrid::section_heads
  float scale_log2;      // |scale| * log2(e), not below 2^-100: 0 * -inf would be NaN
  // q, k and v are not read, because the maps describe them. kNegateScores: scale is |scale|. kSplitsKeys: o is float,
  // and o and lse have `batch` entries for each part of the keys.
  ForwardArgs base;
  OptionArgs options;
  uint32 splits;  // kSplitsKeys: parts of a row's keys
  uint32 unused;
};
static_assert(sizeof(Sm90ForwardArgs) ==
              (5 * sizeof(TensorMapArg) + sizeof(ForwardArgs) + sizeof(OptionArgs) + 8 + 6 * 4 + 63) / 64 * 64);

}  // namespace attend
