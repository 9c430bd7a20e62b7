// Tiles of simt: how a block's work is divided, and the layout of its shared memory. The host chooses a tile
// (src/cuda/launch/simt_variant.cpp), and the kernels are compiled for it.
#pragma once

#include "../common/portable.cuh"
#include "../common/tile_sizes.cuh"

namespace attend {

// A division of columns into `count` parts with `width` columns each. The last part can extend beyond the existing
// columns.
struct ColumnParts {
  int count, width;

  [[nodiscard]] static ATTEND_HOST_DEVICE constexpr ColumnParts of(int columns, int most, int multiple) {
    const int count = ceil_div(columns, most);
    return {count, round_up(ceil_div(columns, count), multiple)};
  }
};

// Tile of the forward pass. Shared memory holds v, p, q and k, in this order. Offsets are in bytes.
struct SimtForwardTile {
  int block_m, block_n, threads;
  int lanes_x;          // number of a warp's lanes along the keys
  int min_blocks;       // number of blocks that must fit on a multiprocessor
  ColumnParts panels;   // panels of q and k. One panel is in shared memory at a time
  ColumnParts columns;  // parts of the columns of o. Each block computes one part

  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int v_begin() const { return 0; }
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int p_begin() const {
    return v_begin() + float_bytes(block_n, columns.width);
  }
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int q_begin() const { return p_begin() + float_bytes(block_n, block_m); }
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int k_begin() const {
    return q_begin() + float_bytes(panels.width, block_m + kTransposedPadding);
  }
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int smem_bytes() const {
    return k_begin() + float_bytes(panels.width, block_n + kTransposedPadding);
  }
};

// Gradients that one kernel of the backward pass computes: dk and dv, dq, dterms, or the gradients of captured tensors.
enum class SimtGradient { kKeysValues, kQueries, kTerms, kCaptures };

// Values of a query row's SavedRow in shared memory. log2_sum is stored separately, because few rows have one.
struct SimtSavedRow {
  float lse, delta;
};

// Tile of one kernel of the backward pass. The kernel owns a tile of keys, or for dq a tile of rows, and streams over
// tiles of the other side. Shared memory holds these arrays, in this order, at offsets in bytes:
// - The tile of ds, if the kernel has one.
// - The tile of p, if the kernel has one. For kCaptures it holds the input scores of the custom score function.
// - The streamed rows for the products of the gradients.
// - A panel of streamed rows, if not resident.
// - The owned tiles, transposed.
// - The saved rows, and their log2_sum.
struct SimtBackwardTile {
  SimtGradient gradient;
  int head_dim, head_dim_v;
  int block_m, block_n, threads;
  int threads_x;       // number of threads of the grid along the owned side
  int min_blocks;      // number of blocks that must fit on a multiprocessor
  int resident;        // 1 if owned tiles stay in shared memory, 0 if they are loaded in panels
  int panel;           // number of columns in shared memory at a time, if not resident
  int parts;           // number of parts of the gradients' columns. Each block computes one part
  int cols_0, cols_1;  // columns of a part: cols_0 for q and k, cols_1 for v

  [[nodiscard]] ATTEND_HOST_DEVICE constexpr bool owns_keys() const { return gradient != SimtGradient::kQueries; }
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int owned() const { return owns_keys() ? block_n : block_m; }
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int streamed() const { return owns_keys() ? block_m : block_n; }
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr bool has_ds() const { return gradient != SimtGradient::kTerms; }
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr bool has_p() const {
    return gradient == SimtGradient::kKeysValues || gradient == SimtGradient::kCaptures;
  }
  // Returns whether the gradients are products with the streamed rows.
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr bool has_products() const {
    return gradient == SimtGradient::kKeysValues || gradient == SimtGradient::kQueries;
  }
  // These functions return whether the streamed rows of pair 0 (q and k), and of pair 1 (dout and v), are in shared
  // memory.
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr bool has_rows_0() const { return resident || has_products(); }
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr bool has_rows_1() const {
    return resident || gradient == SimtGradient::kKeysValues;
  }
  // These functions return the number of columns over which the products of pair 0 and of pair 1 sum.
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int depth_0() const { return round_up(head_dim, 8); }
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int depth_1() const { return round_up(head_dim_v, 8); }

  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int ds_begin() const { return 0; }
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int p_begin() const {
    return ds_begin() + (has_ds() ? float_bytes(streamed(), owned()) : 0);
  }
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int rows_0_begin() const {
    return p_begin() + (has_p() ? float_bytes(streamed(), owned()) : 0);
  }
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int rows_1_begin() const {
    return rows_0_begin() + (has_rows_0() ? float_bytes(streamed(), cols_0) : 0);
  }
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int panel_begin() const {
    return rows_1_begin() + (has_rows_1() ? float_bytes(streamed(), cols_1) : 0);
  }
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int transposed_0_begin() const {
    return panel_begin() + (resident ? 0 : float_bytes(streamed(), panel));
  }
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int transposed_1_begin() const {
    return transposed_0_begin() + float_bytes(resident ? depth_0() : panel, owned() + kTransposedPadding);
  }
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int saved_begin() const {
    return transposed_1_begin() + (resident ? float_bytes(depth_1(), owned() + kTransposedPadding) : 0);
  }
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int log2_sums_begin() const {
    return saved_begin() + block_m * static_cast<int>(sizeof(SimtSavedRow));
  }
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int smem_bytes() const {
    return log2_sums_begin() + float_bytes(1, block_m);
  }
};

}  // namespace attend
