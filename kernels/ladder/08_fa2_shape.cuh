// Rung 08, fa2: how a block's work is divided, and the layout of its shared memory in bytes. The host chooses a tile
// (src/cuda/launch/rungs_fa2.cpp), and the kernels are compiled for it.
#pragma once

#include "../common/portable.cuh"
#include "../common/tile_sizes.cuh"

namespace attend {

// fa2_depth() returns the number of columns over which products sum. fa2_cols() returns the number of columns of the
// results. Columns from head_dim on are zeros.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int fa2_depth(int head_dim) {
  return round_up(head_dim, 8);
}
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int fa2_cols(int head_dim) {
  return round_up(head_dim, 32);
}

struct Fa2ForwardTile {
  int block_m, block_n, threads;
  int lanes_x;     // number of a warp's lanes along the keys
  int min_blocks;  // number of blocks that must fit on a multiprocessor

  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int q_begin() const { return 0; }
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int k_begin(int head_dim) const {
    return q_begin() + float_bytes(fa2_depth(head_dim), block_m + kTransposedPadding);
  }
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int v_begin(int head_dim) const {
    return k_begin(head_dim) + float_bytes(fa2_depth(head_dim), block_n + kTransposedPadding);
  }
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int p_begin(int head_dim) const {
    return v_begin(head_dim) + float_bytes(block_n, fa2_cols(head_dim));
  }
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int smem_bytes(int head_dim) const {
    return p_begin(head_dim) + float_bytes(block_n, block_m + kTransposedPadding);
  }
};

// Saved values of a query row, which the backward pass reads.
struct Fa2SavedRow {
  float lse;    // +inf for rows that see no key, and for rows beyond the last one. p is then 2^-inf = 0
  float delta;  // rowsum(dout * o) - dlse
};

constexpr int kSavedRowsTile = 64;  // number of rows to which heads are padded, a multiple of the backward pass's tile

struct Fa2BackwardTile {
  int block_m, block_n, threads;
  int threads_x;   // number of threads of the grid along the keys
  int min_blocks;  // number of blocks that must fit on a multiprocessor

  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int k_transposed_begin() const { return 0; }
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int v_transposed_begin(int head_dim) const {
    return k_transposed_begin() + float_bytes(fa2_depth(head_dim), block_n + kTransposedPadding);
  }
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int k_begin(int head_dim) const {
    return v_transposed_begin(head_dim) + float_bytes(fa2_depth(head_dim), block_n + kTransposedPadding);
  }
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int q_begin(int head_dim) const {
    return k_begin(head_dim) + float_bytes(block_n, fa2_cols(head_dim));
  }
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int dout_begin(int head_dim) const {
    return q_begin(head_dim) + float_bytes(block_m, fa2_cols(head_dim));
  }
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int scores_begin(int head_dim) const {  // holds p, and later ds
    return dout_begin(head_dim) + float_bytes(block_m, fa2_cols(head_dim));
  }
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int saved_begin(int head_dim) const {
    return scores_begin(head_dim) + float_bytes(block_m, block_n);
  }
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int smem_bytes(int head_dim) const {
    return saved_begin(head_dim) + block_m * static_cast<int>(sizeof(Fa2SavedRow));
  }
};

}  // namespace attend
