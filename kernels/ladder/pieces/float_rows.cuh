// Tiles of float32 rows in shared memory.
#pragma once

#include "../../attention/head_matrix.cuh"
#include "../../common/tile_sizes.cuh"

namespace attend {

// tile = rows [begin, begin + kRows) of matrix, kCols of each, zeros beyond the last row and up to column kWidth. A
// warp for each row: its lanes take neighbouring elements, whole sectors of 32 bytes. Callers put barriers around it.
template <class Config, int kCols, int kWidth, int kRows, int kStride>
__device__ __forceinline__ void load_tile(float (&tile)[kRows][kStride], const HeadMatrix<const float>& matrix,
                                          int64 begin) {
  static_assert(kCols <= kWidth && kWidth <= kStride);
  constexpr int kLanes = 32;
  constexpr int kWarps = Config::kThreads / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int num_rows = static_cast<int>(min(matrix.num_rows - begin, int64{kRows}));
  const float* from = matrix.row(begin + threadIdx.x / kLanes);
#pragma unroll 4
  for (int row = static_cast<int>(threadIdx.x) / kLanes; row < kRows; row += kWarps) {
#pragma unroll
    for (int i = 0; i < round_up(kWidth, kLanes) / kLanes; ++i) {
      const int col = lane + i * kLanes;
      if (col < kWidth) tile[row][col] = row < num_rows && col < kCols ? from[col] : 0.0f;
    }
    from += kWarps * matrix.row_stride;
  }
}

}  // namespace attend
