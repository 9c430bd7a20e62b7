// Parameter structs of the kernels of sm90_fp8_forward. Shared by host and device.
#pragma once

#include "sm90_forward_args.cuh"

namespace attend {

// Factors by which the elements of q, k or v are multiplied. They must be positive.
struct Fp8Descale {
  const float* data;      // float (num_sequences, num_heads_k, blocks); null if all factors are 1
  int64 sequence_stride;  // in elements, as the other strides; 0 if all sequences share the factors
  int64 head_stride;      // 0 if all heads share the factors
  int64 block_stride;     // distance between blocks of kFp8BlockKeys keys; 0 if all keys share the factor

  // Returns the factors of a head's blocks. `data` must not be null.
  [[nodiscard]] ATTEND_HOST_DEVICE const float* of_head(int64 sequence, int64 head) const {
    return data + sequence * sequence_stride + head * head_stride;
  }
};
static_assert(sizeof(Fp8Descale) == 4 * 8);

// The transposed v has rows of kFp8PanelKeys keys, of which the first kBlockN are used: (heads, tiles, head_dim_v, 128)
// e4m3. `heads` counts the heads of all batch entries, or of one batch entry if sequences are packed. The tiles of
// packed sequences begin at F32PieceRows::first(). In each group of 16 keys, position 4 q + i has the key
// {2 q, 2 q + 1, 2 q + 8, 2 q + 9}[i]. An accumulator thread of q k^T has exactly these four keys of a row, so its p
// becomes an A operand without moving to other threads. Keys beyond the end of a sequence are 0.
struct Sm90Fp8TransposeArgs {
  static constexpr const char* kTypeName = "Sm90Fp8TransposeArgs";
  ForwardArgs base;  // only v is read
  OptionArgs options;
  unsigned char* to;
  int64 tiles;    // tiles of a head in memory
  uint32 blocks;  // tiles of the longest sequence
  uint32 unused;
};
static_assert(sizeof(Sm90Fp8TransposeArgs) == sizeof(ForwardArgs) + sizeof(OptionArgs) + 2 * 8 + 2 * 4);

// q_map and k_map have boxes of 128 columns. v_map describes the transposed v as (128, tiles * head_dim_v, heads, 1),
// with boxes of (128, head_dim_v, 1, 1). o_map and terms_map are not used. scale_log2 is |scale| log2(e).
struct Sm90Fp8ForwardArgs : Sm90ForwardArgs {
  static constexpr const char* kTypeName = "Sm90Fp8ForwardArgs";
  Fp8Descale q_descale;
  Fp8Descale k_descale;
  Fp8Descale v_descale;
};
static_assert(sizeof(Sm90Fp8ForwardArgs) == (sizeof(Sm90ForwardArgs) + 3 * sizeof(Fp8Descale) + 63) / 64 * 64);

}  // namespace attend
