// Parameter struct of sm90_forward. Shared by host and device.
#pragma once

#include "../common/args.cuh"

namespace attend {

// All tensor maps have rank 4, (head_dim, seqlen, heads, batch), and the strides of the tensor. Their boxes are (64,
// rows, 1, 1); the comment on each map states its number of rows. The maps use the 128-byte swizzle and fill elements
// outside the tensor with zeros. For packed sequences, batch is 1 and seqlen is the number of tokens of all sequences.
struct Sm90ForwardArgs {
  static constexpr const char* kTypeName = "Sm90ForwardArgs";
  TensorMapArg q_map;      // boxes of kBlockM rows. If seqlen is 0, nothing is loaded and any valid map will do
  TensorMapArg k_map;      // boxes of kBlockN rows
  TensorMapArg v_map;      // boxes of kBlockN rows, head_dim_v columns
  TensorMapArg o_map;      // boxes of 64 rows, head_dim_v columns
  TensorMapArg terms_map;  // read if kTermsTiles is set: the bias, boxes of kBlockM rows, seqlen_k columns. Its head or
                           // batch extent is 1 if the bias is broadcast
  // The loop over query tiles reads the next fields. Their offsets are the same for all options.
  uint32* next_tile;     // if kSchedule == kDynamic, points to the tile counter, which is 0 before each launch;
                         // otherwise null
  uint32 total_tiles;    // Sm90ForwardGrid::total_tiles
  uint32 row_tiles;      // query tiles of a head: Sm90ForwardGrid::row_tiles
  uint32 section_heads;  // query heads whose tiles run at the same time: Sm90ForwardGrid::section_heads
  float scale_log2;      // |scale| * log2(e), but at least 2^-100, because 0 * -inf would be NaN
  // The kernel does not read base.q, base.k and base.v, because the maps describe them. If kNegateScores is set,
  // base.scale is |scale|. If kSplitsKeys is set, o is float, and o and lse have `batch` entries for each part of the
  // keys.
  ForwardArgs base;
  OptionArgs options;
  uint32 splits;  // number of parts into which a row's keys are split; read if kSplitsKeys is set
  uint32 unused;
};
static_assert(sizeof(Sm90ForwardArgs) ==
              (5 * sizeof(TensorMapArg) + sizeof(ForwardArgs) + sizeof(OptionArgs) + 8 + 6 * 4 + 63) / 64 * 64);

}  // namespace attend
