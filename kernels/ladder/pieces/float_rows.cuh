// Loads tiles of float32 rows into shared memory.
#pragma once

#include "../../attention/head_matrix.cuh"
#include "../../common/tile_sizes.cuh"
#include "../../tiles/extents.cuh"

namespace attend {

// Numbers of columns of a tile. The first `exist` columns are loaded from memory, and zeros are stored in the columns
// from `exist` to `filled`.
struct LoadedColumns {
  int exist;
  int filled;
};

// Loads rows of the matrix, from row `begin` on, into the tile float[rows][columns]. Rows behind the last row of the
// matrix become zeros. Each row has a warp, whose lanes load neighbouring elements in full sectors of 32 bytes. The
// caller must put barriers before and after the call.
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
