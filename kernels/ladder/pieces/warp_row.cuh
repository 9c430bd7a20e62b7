// The online softmax over a tile of keys in shared memory, with one query row for each warp. Rungs 03 and 04 use it.
#pragma once

#include "../../common/numbers.cuh"
#include "../../common/warp_reduce.cuh"
#include "float_rows.cuh"

namespace attend {

// Tiles of keys and values, and the query row of each warp, in shared memory.
template <class Config>
struct WarpRowStorage {
  static constexpr int kWarps = Config::kThreads / kWarpThreads;
  // Number of columns of v. Columns are padded with zeros, so that lanes have equal numbers of columns.
  static constexpr int kColsV = round_up(Config::kHeadDimV, kWarpThreads);

  float q[kWarps][Config::kHeadDim];
  float k[Config::kBlockN][odd_stride(Config::kHeadDim)];  // lanes read one column of different keys
  float v[Config::kBlockN][kColsV];                        // lanes read neighbouring columns of one key

  __device__ __forceinline__ void load_keys(const HeadMatrix<const float>& k_rows,
                                            const HeadMatrix<const float>& v_rows, int64 key_begin) {
    load_tile<Config>(k, k_rows, key_begin, {Config::kHeadDim, Config::kHeadDim});
    load_tile<Config>(v, v_rows, key_begin, {Config::kHeadDimV, kColsV});
  }
};

template <class Config>
struct WarpRow {
  using SharedStorage = WarpRowStorage<Config>;
  static constexpr int kKeys = Config::kBlockN / kWarpThreads;        // number of keys of a lane: lane, lane + 32, ...
  static constexpr int kCols = SharedStorage::kColsV / kWarpThreads;  // number of columns of a lane: lane, lane + 32,
                                                                      // ...

  float row_max = -kInfinity;  // m, the running row maximum
  float row_sum = 0.0f;        // this lane's share of l
  float o_frag[kCols] = {};    // the sum of exp(s - m) v

  // Processes the first num_keys keys of the tile. q is the query row in shared memory.
  __device__ __forceinline__ void update(const SharedStorage& shared, const float* q, int num_keys, float scale) {
    const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
    float s_frag[kKeys] = {};
#pragma unroll 4
    for (int i = 0; i < Config::kHeadDim; ++i) {
#pragma unroll
      for (int j = 0; j < kKeys; ++j) s_frag[j] = fmaf(q[i], shared.k[lane + j * kWarpThreads][i], s_frag[j]);
    }

    float new_max = row_max;
#pragma unroll
    for (int j = 0; j < kKeys; ++j) {
      s_frag[j] = lane + j * kWarpThreads < num_keys ? scale * s_frag[j] : -kInfinity;
      new_max = fmaxf(new_max, s_frag[j]);
    }
    new_max = warp_max(new_max);
    const float rescale = expf(row_max - exponent_base(new_max));  // rescale is 0 for the first tile, because row_max
                                                                   // is -inf
    row_max = new_max;
    row_sum *= rescale;
#pragma unroll
    for (int j = 0; j < kKeys; ++j) {
      s_frag[j] = expf(s_frag[j] - exponent_base(new_max));
      row_sum += s_frag[j];
    }
#pragma unroll
    for (int c = 0; c < kCols; ++c) o_frag[c] *= rescale;
#pragma unroll
    for (int j = 0; j < kKeys; ++j) add_values(shared, s_frag[j], j * kWarpThreads, num_keys);
  }

  // Returns l in every lane.
  [[nodiscard]] __device__ __forceinline__ float total() const {
    return warp_sum(row_sum);
  }

  // Computes o_row = factor o_frag.
  __device__ __forceinline__ void store(float* o_row, float factor) const {
#pragma unroll
    for (int c = 0; c < kCols; ++c) {
      if (column(c) < Config::kHeadDimV) o_row[column(c)] = factor * o_frag[c];
    }
  }

  // Computes o_frag = factor o_row.
  __device__ __forceinline__ void load(const float* o_row, float factor) {
#pragma unroll
    for (int c = 0; c < kCols; ++c) {
      if (column(c) < Config::kHeadDimV) o_frag[c] = factor * o_row[column(c)];
    }
  }

 private:
  [[nodiscard]] static __device__ __forceinline__ int column(int c) {
    return static_cast<int>(threadIdx.x) % kWarpThreads + c * kWarpThreads;
  }

  // Computes o_frag += p v for the 32 keys of the tile from `begin` on. Each lane holds p of one key. Keys that the row
  // does not see are skipped instead of being multiplied by 0, because their values may be infinite.
  __device__ __forceinline__ void add_values(const SharedStorage& shared, float p, int begin, int num_keys) {
    const int end = min(kWarpThreads, num_keys - begin);
#pragma unroll 4
    for (int i = 0; i < end; ++i) {
      const float p_i = __shfl_sync(kAllLanes, p, i);
#pragma unroll
      for (int c = 0; c < kCols; ++c) {
        o_frag[c] = fmaf(p_i, shared.v[begin + i][column(c)], o_frag[c]);
      }
    }
  }
};

}  // namespace attend
