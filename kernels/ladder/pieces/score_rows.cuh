// The online softmax of a tile of scores in shared memory, with a warp for each row. Rungs 05 and 06 use it.
#pragma once

#include "../../common/numbers.cuh"
#include "thread_grid.cuh"

namespace attend {

// Tiles and statistics of a block in shared memory.
template <class Config>
struct ScoreRowsStorage {
  static constexpr int kStride = odd_stride(Config::kHeadDim);

  float q[Config::kBlockM][kStride];
  float k[Config::kBlockN][kStride];
  float v[Config::kBlockN][ThreadGrid<Config>::kColsV];
  float s[Config::kBlockM][odd_stride(Config::kBlockN)];  // scores, and later probabilities
  float row_max[Config::kBlockM];                         // m, the running row maximum
  float row_sum[Config::kBlockM];                         // l, the running row sum
  float rescale[Config::kBlockM];                         // exp(m_old - m), by which the accumulated o is multiplied

  __device__ __forceinline__ void load_keys(const HeadMatrix<const float>& k_rows,
                                            const HeadMatrix<const float>& v_rows, int64 key_begin) {
    load_tile<Config>(k, k_rows, key_begin, {Config::kHeadDim, Config::kHeadDim});
    load_tile<Config>(v, v_rows, key_begin, {Config::kHeadDimV, ThreadGrid<Config>::kColsV});
  }

  // Computes s = scale q k^T with the mask. The caller must put barriers before and after the call.
  __device__ __forceinline__ void compute_scores(const WindowMask& mask, int64 row_begin, int64 key_begin,
                                                 float scale) {
    using Grid = ThreadGrid<Config>;
    float s_frag[Grid::kRows][Grid::kKeys];
    Grid::multiply_qk(s_frag, q, k);
    Grid::scale_and_mask(s_frag, mask, row_begin, key_begin, scale);
#pragma unroll
    for (int i = 0; i < Grid::kRows; ++i) {
#pragma unroll
      for (int j = 0; j < Grid::kKeys; ++j) s[Grid::row(i)][Grid::col(j)] = s_frag[i][j];
    }
  }

  // Turns s into exp(s - m), and updates m, l and rescale. The caller must put barriers before and after the call.
  __device__ __forceinline__ void update_softmax() {
    static_assert(Config::kBlockN % kWarpThreads == 0);
    const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
    for (int row = static_cast<int>(threadIdx.x) / kWarpThreads; row < Config::kBlockM;
         row += Config::kThreads / kWarpThreads) {
      const float old_max = row_max[row];
      float new_max = old_max;
#pragma unroll
      for (int key = lane; key < Config::kBlockN; key += kWarpThreads) new_max = fmaxf(new_max, s[row][key]);
      new_max = warp_max(new_max);
      float sum = 0.0f;
#pragma unroll
      for (int key = lane; key < Config::kBlockN; key += kWarpThreads) {
        s[row][key] = expf(s[row][key] - exponent_base(new_max));
        sum += s[row][key];
      }
      sum = warp_sum(sum);
      __syncwarp();  // waits until all lanes have read the old maximum; lane 0 may then overwrite it
      if (lane != 0) continue;
      rescale[row] = expf(old_max - exponent_base(new_max));
      row_sum[row] = row_sum[row] * rescale[row] + sum;
      row_max[row] = new_max;
    }
  }
};

}  // namespace attend
