// Parameter struct of the sm90 backward kernels for head dimensions above 256.
#pragma once

#include "../common/args.cuh"

namespace attend {

// A unit is a KV head of a sequence, with the query heads that share it. A panel has all rows and some keys of one
// unit, or all rows and all keys of several units. Within a panel, a matrix is the scores of one query head.
//
// All tensor maps have boxes of (64, 64, 1, 1) and the swizzle of 128 bytes, and fill elements outside the tensor with
// zeros. The maps of q, k, v and dout have the dimensions (head_dim, seqlen, heads, batch). p_map and ds_map have the
// dimensions (panel_keys, matrix_rows, matrices, 1). All strides are multiples of 16 bytes.
struct Sm90BackwardPanelsArgs {
  static constexpr const char* kTypeName = "Sm90BackwardPanelsArgs";
  TensorMapArg q_map;
  TensorMapArg k_map;
  TensorMapArg v_map;
  TensorMapArg dout_map;
  TensorMapArg p_map;
  TensorMapArg ds_map;
  BackwardArgs base;   // gradient_scale includes the factor 2^-ds_bits (Sm90BackwardUnits)
  OptionArgs options;  // packed sequences and windows
  float* lse_log2;     // (query heads of all sequences, stats_rows): log2(e) lse - p_bits; +inf if the row sees no key
  float* delta;        // as lse_log2: rowsum(dout * o) - dlse, in the units of ds; 0 if the row sees no key
  void* p;             // Element (matrices, matrix_rows, panel_keys), times 2^p_bits
  void* ds;            // Element (matrices, matrix_rows, panel_keys), times 2^ds_bits
  float* dq_sums;      // (matrices, matrix_rows / 128, column tiles, 2 warpgroups, columns / 8, 128 threads, 4), if
                       // keys of a unit are in several panels. Otherwise null
  int64 stats_rows;    // rows of the statistics per head, including padding
  int64 matrix_rows;   // rows of a matrix, including padding
  int panel_keys;      // row length of p and ds
  int first_key;       // first key of the panel
  uint32 first_unit;   // first unit of the panel
  uint32 num_units;    // number of units of the panel
  float scale_log2;    // scale * log2(e), or 1e-30 if that product is 0
  uint32 padding;
};
static_assert(sizeof(Sm90BackwardPanelsArgs) ==
              (6 * 128 + sizeof(BackwardArgs) + sizeof(OptionArgs) + 7 * 8 + 6 * 4 + 63) / 64 * 64);

}  // namespace attend
