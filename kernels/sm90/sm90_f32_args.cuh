// Parameter structs of the kernels of sm90_f32_forward. Shared by host and device.
#pragma once

#include "sm90_forward_args.cuh"

namespace attend {

// Output of the kernel that splits float32 tensors. Each number is the sum of a high and a low piece. The pieces of a
// tensor are (2, heads, rows, pitch) float16, with the high pieces first. `rows` is F32PieceRows::rows, and `pitch` is
// f32_piece_pitch(). `heads` counts the heads of all batch entries, or of one batch entry if sequences are packed.
struct F32Pieces {
  unsigned short* q;
  unsigned short* k;
  unsigned short* v;
  float* q_units;    // (query heads, rows / 64): factor by which the pieces of 64 rows are multiplied
  float* key_units;  // (KV heads, rows / kBlockN, 2): the same factors for k and for v
  uint32* wide;      // (sequences, KV heads), 0 before the launch; set to 1 if two pieces are not enough for q, k or v
  int64 q_rows;      // F32PieceRows::rows of q
  int64 k_rows;
  uint32 q_blocks;  // F32PieceRows::blocks of q
  uint32 k_blocks;
};
static_assert(sizeof(F32Pieces) == 8 * 8 + 2 * 4);

struct Sm90F32SplitArgs {
  static constexpr const char* kTypeName = "Sm90F32SplitArgs";
  ForwardArgs base;  // only q, k and v are read
  OptionArgs options;
  F32Pieces pieces;
};
static_assert(sizeof(Sm90F32SplitArgs) == sizeof(ForwardArgs) + sizeof(OptionArgs) + sizeof(F32Pieces));

// q_map, k_map and v_map describe the pieces as (head_dim, rows, heads, 2), with boxes of (64, kBlockM or kBlockN, 1,
// 1). o_map and terms_map are not used.
struct Sm90F32ForwardArgs : Sm90ForwardArgs {
  static constexpr const char* kTypeName = "Sm90F32ForwardArgs";
  F32Pieces pieces;
};
static_assert(sizeof(Sm90F32ForwardArgs) == (sizeof(Sm90ForwardArgs) + sizeof(F32Pieces) + 63) / 64 * 64);

// Parameter struct of the kernel that computes the heads which the main kernel skips.
struct Sm90F32WideArgs : ForwardOptionArgs {
  static constexpr const char* kTypeName = "Sm90F32WideArgs";
  const uint32* wide;  // F32Pieces::wide
};
static_assert(sizeof(Sm90F32WideArgs) == sizeof(ForwardOptionArgs) + 8);

}  // namespace attend
