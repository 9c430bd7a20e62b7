// Tiles of float32 rows in shared memory.
#pragma once

#include "../../attention/head_matrix.cuh"
#include "../../common/tile_sizes.cuh"
#include "../../tiles/extents.cuh"

namespace attend {

// How many columns of a tile's rows are loaded: `exist` from memory, and zeros up to column `filled`.
struct LoadedColumns {
  int exist;
  int filled;
};

// tile = rows of matrix from row `begin` on, zeros beyond the last row. tile: float[rows][columns].
// A warp for each row: its lanes take neighbouring elements, whole sectors of 32 bytes. Callers put barriers around it.
template <class Config, class Tile>
__device__ __forceinline__ void load_tile(Tile& tile, const HeadMatrix<const float>& matrix, int64 begin,
                                          LoadedColumns columns) {
  constexpr int kRows = kRowsOf<Tile>;
  constexpr int kLanes = 32;
  constexpr int kWarps = Config::kThreads / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int num_rows = static_cast<int>(min(matrix.num_rows - begin, int64{kRows}));
  const float* from = matrix.row(begin + threadIdx.x / kLanes);
#pragma unroll 4
  for (int row = static_cast<int>(threadIdx.x) / kLanes; row < kRows; row += kWarps) {
#pragma unroll
    for (int i = 0; i < round_up(columns.filled, kLanes) / kLanes; ++i) {
      const int col = lane + i * kLanes;
      if (col < columns.filled) tile[row][col] = row < num_rows && col < columns.exist ? from[col] : 0.0f;
    }
    from += kWarps * matrix.row_stride;
  }
}

}  // namespace attend
