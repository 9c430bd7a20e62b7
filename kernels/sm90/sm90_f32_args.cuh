// The parameters of the kernels of sm90_f32_forward, for host and device.
#pragma once

#include "sm90_forward_args.cuh"

namespace attend {

// What the preparing kernel writes. Pieces: (2, heads, rows, pitch) float16, the high ones first, where rows are those
// of F32PieceRows and pitch is f32_piece_pitch(). Heads: of all batch entries; of packed sequences those of one.
struct F32Pieces {
  unsigned short* q;
  unsigned short* k;
  unsigned short* v;
  float* q_units;    // (heads of q, rows / 64): what a row's pieces are to be multiplied with
  float* key_units;  // (heads of k, rows / kBlockN, 2): of k, and of v
  uint32* wide;      // (sequences, heads of k), 0 before: 1 where two pieces are not enough for q, k or v
  int64 q_rows;      // F32PieceRows::rows
  int64 k_rows;
  uint32 q_blocks;  // F32PieceRows::blocks
  uint32 k_blocks;
};
static_assert(sizeof(F32Pieces) == 8 * 8 + 2 * 4);

struct Sm90F32SplitArgs {
  static constexpr const char* kTypeName = "Sm90F32SplitArgs";
  ForwardArgs base;  // q, k, v
  OptionArgs options;
  F32Pieces pieces;
};
static_assert(sizeof(Sm90F32SplitArgs) == sizeof(ForwardArgs) + sizeof(OptionArgs) + sizeof(F32Pieces));

// q_map, k_map, v_map: of pieces, (head_dim, rows, heads, 2), boxes of (64, kBlockM or kBlockN, 1, 1). o_map and
// terms_map are not used.
struct Sm90F32ForwardArgs : Sm90ForwardArgs {
  static constexpr const char* kTypeName = "Sm90F32ForwardArgs";
  F32Pieces pieces;
};
static_assert(sizeof(Sm90F32ForwardArgs) == (sizeof(Sm90ForwardArgs) + sizeof(F32Pieces) + 63) / 64 * 64);

// Of the kernel for heads that the main one leaves out.
struct Sm90F32WideArgs : ForwardOptionArgs {
  static constexpr const char* kTypeName = "Sm90F32WideArgs";
  const uint32* wide;  // F32Pieces
};
static_assert(sizeof(Sm90F32WideArgs) == sizeof(ForwardOptionArgs) + 8);

}  // namespace attend
