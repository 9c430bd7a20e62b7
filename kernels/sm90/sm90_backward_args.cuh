// Parameter of the sm90 backward kernels.
#pragma once

#include "../attention/score_transform.cuh"
#include "../common/args.cuh"

namespace attend {

// BackwardArgs and OptionArgs, plus tensor maps and pointers into the workspace (Sm90BackwardWorkspace). With
// kIsVarlen, batch is the number of sequences, and seqlen_q and seqlen_k are upper bounds of their lengths. The kernels
// do not read the boolean mask tensor. They read the additive bias through its tensor map; of the bias strides they
// only check which are 0. base.gradient_scale includes the scale of kept entries and 2^-ds_bits (Sm90BackwardUnits).
//
// All maps have rank 4, (head_dim, seqlen, heads, batch), and boxes of (64, rows, 1, 1). They swizzle rows of 128 bytes
// and read zeros outside the tensor. Addresses and the strides of rows and heads are multiples of 16 bytes. The same
// holds for o, dq, dk and dv, which the kernels read and write 16 bytes at a time. A tensor without elements gets the
// map of any other tensor, because its map is never used. terms_map, for the bias, is (seqlen_k, seqlen_q, heads,
// batch), with 1 head or 1 batch entry if the bias is broadcast.
struct Sm90BackwardArgs {
  static constexpr const char* kTypeName = "Sm90BackwardArgs";
  TensorMapArg q_map;      // 64 rows
  TensorMapArg dout_map;   // 64 rows
  TensorMapArg k_map;      // kBlockN rows
  TensorMapArg v_map;      // kBlockN rows
  TensorMapArg terms_map;  // 64 rows
  BackwardArgs base;
  OptionArgs options;
  // Row statistics, (heads, stats_rows), permuted by sm90_backward_stats_place(). lse_log2 is log2(e) lse - p_bits.
  // With a transform its lse_offset is subtracted as well. With kSumsRows the value is lse. It is +inf for rows that
  // see no key or do not exist.
  float* lse_log2;
  float* delta;  // (rowsum(dout * o) - dlse) / scale of kept entries
  // kSumsRows: lse_log2_sum(), written in tiles with an |lse| of at least kCoarseLse. kMayBeLowest: written in all
  // tiles.
  float* log2_sums;
  uint32* has_coarse_rows;  // kMayBeLowest: 1 if any row has a coarse lse, otherwise 0
  float* dq_sums;           // (heads, stats_rows / 64, depth / 64, 4 warps, 8, 32 lanes, 4): dq / gradient_scale
  uint32* dq_turns;     // kIsDeterministic: (heads, stats_rows / 64, 4): key blocks that have added to a part of a tile
  float* partial_sums;  // (blocks, block_n / 64, (depth + depth_v) / 8, 128 threads, 4)
  uint32* partial_ready;        // (blocks, block_n / 64)
  uint32* next_item;            // next entry of the list of key blocks
  void* dterms;                 // kDtermsBlocks > 0: DtermsElement (batch or 1, num_heads_q, seqlen_q, seqlen_k)
  TensorStrides dterms_stride;  // elements; multiples of 8
  float* key_sums;              // kAddsUp: (heads_k, key_blocks, block_n / 64, (depth + depth_v) / 8, 128 threads, 4)
  // Gradients of options.captured, dense. Null if not requested.
  float* captured_gradients[kMostCaptured];
  int64 stats_rows;      // padded rows of one head
  uint32 key_blocks;     // per sequence: num_tiles(seqlen_k, kBlockN)
  uint32 section_heads;  // sm90_backward_section(), sm90_backward_full_section()
  uint32 num_blocks;     // grid size of the main kernel
  float scale_log2;      // scale * log2(e), or 1e-30 if that is 0
  // Factor that turns ds, in the units of the products of dq, into captured_gradients.
  float captured_scale;
  ReciprocalTransform transform;  // kHasTransform
};
static_assert(sizeof(Sm90BackwardArgs) ==
              (5 * 128 + sizeof(BackwardArgs) + sizeof(OptionArgs) + (15 + kMostCaptured) * 8 + 8 * 4 + 63) / 64 * 64);

}  // namespace attend
