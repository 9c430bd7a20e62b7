// Parameter struct of the sm90 backward kernels.
#pragma once

#include "../attention/score_transform.cuh"
#include "../common/args.cuh"

namespace attend {

// BackwardArgs and OptionArgs, plus tensor maps and pointers into the workspace (Sm90BackwardWorkspace). If kIsVarlen
// is set, `batch` is the number of sequences, and seqlen_q and seqlen_k are upper bounds of their lengths. The kernels
// do not read the boolean mask tensor. They read the additive bias through its tensor map, and only check which bias
// strides are 0. base.gradient_scale includes the dropout factor 1 / (1 - p) and the factor 2^-ds_bits
// (Sm90BackwardUnits).
//
// All tensor maps have rank 4, (head_dim, seqlen, heads, batch), and boxes of (64, rows, 1, 1). The maps swizzle rows
// of 128 bytes and fill elements outside the tensor with zeros. Addresses and the strides of rows and heads are
// multiples of 16 bytes. This also holds for o, dq, dk and dv, which the kernels read and write 16 bytes at a time. A
// tensor without elements gets the map of any other tensor, because its map is never used. terms_map describes the bias
// as (seqlen_k, seqlen_q, heads, batch), with 1 head or 1 batch entry if the bias is broadcast.
struct Sm90BackwardArgs {
  static constexpr const char* kTypeName = "Sm90BackwardArgs";
  TensorMapArg q_map;      // boxes of 64 rows
  TensorMapArg dout_map;   // boxes of 64 rows
  TensorMapArg k_map;      // boxes of kBlockN rows
  TensorMapArg v_map;      // boxes of kBlockN rows
  TensorMapArg terms_map;  // boxes of 64 rows
  BackwardArgs base;
  OptionArgs options;
  // Row statistics of shape (heads, stats_rows), permuted by sm90_backward_stats_place(). lse_log2 is log2(e) lse -
  // p_bits. With a transform, the transform's lse_offset is subtracted too. If kSumsRows is set, the field holds lse
  // itself. The value is +inf for rows that see no key or do not exist.
  float* lse_log2;
  float* delta;  // (rowsum(dout * o) - dlse) * (1 - p) with dropout probability p
  // Results of lse_log2_sum(), used if kSumsRows is set. They are written for query tiles in which some |lse| is at
  // least kCoarseLse. If kMayBeLowest is set, they are written for all query tiles.
  float* log2_sums;
  uint32* has_coarse_rows;  // 1 if any row has a coarse lse, otherwise 0. The rounding error of a coarse lse is too
                            // large (lse_rounding.cuh). Used if kMayBeLowest is set
  float* dq_sums;           // (heads, stats_rows / 64, depth / 64, 4 warps, 8, 32 lanes, 4): float sums of dq /
                            // gradient_scale
  uint32* dq_turns;     // (heads, stats_rows / 64, 4): number of key blocks that have added to a part of a query tile.
                        // Used if kIsDeterministic is set
  float* partial_sums;  // (blocks, block_n / 64, (depth + depth_v) / 8, 128 threads, 4): dk and dv of split work items
  uint32* partial_ready;        // (blocks, block_n / 64): flags that the partial sums are complete
  uint32* next_item;            // counter: index of the next key block that a thread block takes
  void* dterms;                 // gradient of the bias, DtermsElement (batch or 1, num_heads_q, seqlen_q, seqlen_k).
                                // Used if kDtermsBlocks > 0
  TensorStrides dterms_stride;  // in elements; multiples of 8
  float* key_sums;              // (heads_k, key_blocks, block_n / 64, (depth + depth_v) / 8, 128 threads, 4): sums of
                                // dk and dv. Used if kAddsUp is set
  // Gradients of the tensors in options.captured, as contiguous arrays. A pointer is null if its gradient is not
  // requested.
  float* captured_gradients[kMostCaptured];
  int64 stats_rows;      // rows of the statistics per head, including padding
  uint32 key_blocks;     // key blocks per sequence: num_tiles(seqlen_k, kBlockN)
  uint32 section_heads;  // heads whose key blocks are interleaved, from sm90_backward_section() or
                         // sm90_backward_full_section()
  uint32 num_blocks;     // grid size of the main kernel
  float scale_log2;      // scale * log2(e), or 1e-30 if that product is 0
  // Factor that converts ds to the units of captured_gradients. ds has the units of the dq product.
  float captured_scale;
  ReciprocalTransform transform;  // read if kHasTransform is set
};
static_assert(sizeof(Sm90BackwardArgs) ==
              (5 * 128 + sizeof(BackwardArgs) + sizeof(OptionArgs) + (15 + kMostCaptured) * 8 + 8 * 4 + 63) / 64 * 64);

}  // namespace attend
