// The parameter of the kernels of the sm90 backward pass.
#pragma once

#include "../attention/score_transform.cuh"
#include "../common/args.cuh"

namespace attend {

// BackwardArgs and OptionArgs, with tensor maps and the parts of the workspace (Sm90BackwardWorkspace). kIsVarlen:
// batch counts the sequences, seqlen_q and seqlen_k bound their lengths. The mask from memory is not read. A term from
// memory is read through its map; of its strides it only matters which are 0. base.gradient_scale includes the scale of
// kept entries and 2^-ds_bits (Sm90BackwardUnits).
//
// Maps: rank 4, (head_dim, seqlen, heads, batch), boxes of (64, rows, 1, 1), swizzled in rows of 128 bytes, zeros
// outside. Addresses and the strides of rows and heads are multiples of 16 bytes. The same holds for o, dq, dk and dv,
// which are read and written 16 bytes at a time. A tensor without elements gets a map of any tensor: it is never used.
// terms_map is (seqlen_k, seqlen_q, heads, batch), with 1 head or batch entry if the term is broadcast.
struct Sm90BackwardArgs {
  static constexpr const char* kTypeName = "Sm90BackwardArgs";
  TensorMapArg q_map;      // 64 rows
  TensorMapArg dout_map;   // 64 rows
  TensorMapArg k_map;      // kBlockN rows
  TensorMapArg v_map;      // kBlockN rows
  TensorMapArg terms_map;  // 64 rows
  BackwardArgs base;
  OptionArgs options;
  // Statistics, (heads, stats_rows), permuted: sm90_backward_stats_place().
  // log2(e) lse - p_bits, of a transform less its lse_offset, or lse if kSumsRows; +inf if a row sees no key or does
  // not exist.
  float* lse_log2;
  float* delta;  // (rowsum(dout * o) - dlse) / scale of kept entries
  // kSumsRows: lse_log2_sum(), in tiles with an |lse| of kCoarseLse or more. kMayBeLowest: in all tiles.
  float* log2_sums;
  uint32* has_coarse_rows;  // kMayBeLowest: 1 if there is such a tile, else 0
  float* dq_sums;           // (heads, stats_rows / 64, depth / 64, 4 warps, 8, 32 lanes, 4): dq / gradient_scale
  uint32* dq_turns;     // kIsDeterministic: (heads, stats_rows / 64, 4): key blocks that have added to a part of a tile
  float* partial_sums;  // (blocks, block_n / 64, (depth + depth_v) / 8, 128 threads, 4)
  uint32* partial_ready;        // (blocks, block_n / 64)
  uint32* next_item;            // of the list of key blocks
  void* dterms;                 // kDtermsBlocks > 0: DtermsElement (batch or 1, num_heads_q, seqlen_q, seqlen_k)
  TensorStrides dterms_stride;  // elements; multiples of 8
  float* key_sums;              // kAddsUp: (heads_k, key_blocks, block_n / 64, (depth + depth_v) / 8, 128 threads, 4)
  float* captured_gradients[kMostCaptured];  // of options.captured, dense; null: not asked for
  int64 stats_rows;                          // padded rows of one head
  uint32 key_blocks;                         // of a sequence: num_tiles(seqlen_k, kBlockN)
  uint32 section_heads;                      // sm90_backward_section(), sm90_backward_full_section()
  uint32 num_blocks;                         // of the main kernel's grid
  float scale_log2;                          // scale * log2(e); 1e-30 if that is 0
  float captured_scale;                      // of ds, as dq's products take it, in captured_gradients
  ReciprocalTransform transform;             // kHasTransform
};
static_assert(sizeof(Sm90BackwardArgs) ==
              (5 * 128 + sizeof(BackwardArgs) + sizeof(OptionArgs) + (15 + kMostCaptured) * 8 + 8 * 4 + 63) / 64 * 64);

}  // namespace attend
