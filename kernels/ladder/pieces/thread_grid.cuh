// The threads of a block as a grid of 16 columns, which divides S and o in rungs 05 to 07.
//
// A thread has a small tile of S and of o: the rows row(0), row(1), ... and the columns col(0), col(1), ...
// Neighbouring threads have neighbouring columns, so lanes read neighbouring words. A loaded value is used for an
// entire row or column of the thread's tile.
#pragma once

#include "../../common/numbers.cuh"
#include "../../common/warp_reduce.cuh"
#include "float_rows.cuh"
#include "ladder_shapes.cuh"

namespace attend {

template <class Config>
struct ThreadGrid {
  static constexpr int kColThreads = kGridColumns;
  static constexpr int kRowThreads = Config::kThreads / kColThreads;
  static constexpr int kRows = Config::kBlockM / kRowThreads;  // number of rows of a thread
  static constexpr int kKeys = Config::kBlockN / kColThreads;  // number of keys of a thread, which are columns of S
  // Number of columns of o, including padding columns, which are always 0.
  static constexpr int kColsV = round_up(Config::kHeadDimV, kColThreads);
  static constexpr int kCols = kColsV / kColThreads;  // number of columns of o of a thread
  static_assert(kRows * kRowThreads == Config::kBlockM && kKeys * kColThreads == Config::kBlockN);

  [[nodiscard]] static __device__ __forceinline__ int row(int i) {
    return static_cast<int>(threadIdx.x) / kColThreads + i * kRowThreads;
  }
  [[nodiscard]] static __device__ __forceinline__ int col(int j) {
    return static_cast<int>(threadIdx.x) % kColThreads + j * kColThreads;
  }

  // Computes the scores of this thread, s = q k^T, from rows of q and k in shared memory.
  template <int kStride>
  static __device__ __forceinline__ void multiply_qk(float (&s_frag)[kRows][kKeys],
                                                     const float (&q)[Config::kBlockM][kStride],
                                                     const float (&k)[Config::kBlockN][kStride]) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int j = 0; j < kKeys; ++j) s_frag[i][j] = 0.0f;
    }
#pragma unroll 4
    for (int d = 0; d < Config::kHeadDim; ++d) {
      float q_frag[kRows], k_frag[kKeys];
#pragma unroll
      for (int i = 0; i < kRows; ++i) q_frag[i] = q[row(i)][d];
#pragma unroll
      for (int j = 0; j < kKeys; ++j) k_frag[j] = k[col(j)][d];
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
#pragma unroll
        for (int j = 0; j < kKeys; ++j) s_frag[i][j] = fmaf(q_frag[i], k_frag[j], s_frag[i][j]);
      }
    }
  }

  // Computes o_frag += P V from probabilities and values in shared memory.
  template <int kStride>
  static __device__ __forceinline__ void multiply_pv(float (&o_frag)[kRows][kCols],
                                                     const float (&p)[Config::kBlockM][kStride],
                                                     const float (&v)[Config::kBlockN][kColsV]) {
#pragma unroll 4
    for (int key = 0; key < Config::kBlockN; ++key) {
      float p_frag[kRows], v_frag[kCols];
#pragma unroll
      for (int i = 0; i < kRows; ++i) p_frag[i] = p[row(i)][key];
#pragma unroll
      for (int c = 0; c < kCols; ++c) v_frag[c] = v[key][col(c)];
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
#pragma unroll
        for (int c = 0; c < kCols; ++c) o_frag[i][c] = fmaf(p_frag[i], v_frag[c], o_frag[i][c]);
      }
    }
  }

  // Multiplies s_frag by scale, and sets scores of hidden keys to -inf. The tile begins at (row_begin, key_begin).
  static __device__ __forceinline__ void scale_and_mask(float (&s_frag)[kRows][kKeys], const WindowMask& mask,
                                                        int64 row_begin, int64 key_begin, float scale) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int64 num_keys = mask.row(row_begin + row(i)).end - key_begin;
#pragma unroll
      for (int j = 0; j < kKeys; ++j) s_frag[i][j] = col(j) < num_keys ? scale * s_frag[i][j] : -kInfinity;
    }
  }

  // Calls visit(row of the tile, column of o, element of o_frag) for the elements inside o. The caller loads or stores
  // them.
  template <class Visit>
  static __device__ __forceinline__ void for_each_output(float (&o_frag)[kRows][kCols], int64 num_rows,
                                                         const Visit& visit) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int c = 0; c < kCols; ++c) {
        if (row(i) < num_rows && col(c) < Config::kHeadDimV) visit(row(i), col(c), o_frag[i][c]);
      }
    }
  }
};

}  // namespace attend
