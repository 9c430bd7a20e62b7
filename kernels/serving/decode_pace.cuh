// How fast the blocks of a grid are. Multiprocessors that share a way to the memory with more others are slower, by 5 %
// and more, and all wait for the slowest. So blocks measure how long their shares took, and the last one of a launch
// makes the next shares of those times. Only where work is cut changes, not what comes out (decode_tree.cuh).
#pragma once

#include "../common/warp_reduce.cuh"
#include "decode_args.cuh"

namespace attend {

constexpr uint32 kAllPaces = uint32{1} << 24;

// A grid's paces in device memory, zeroed once: for each block the part of all work that lies before its own, times
// kAllPaces, and at the end kAllPaces; then times.
struct DecodePaces {
  uint32* bounds;
  int blocks;

  [[nodiscard]] __device__ __forceinline__ bool are_known() const { return bounds[1] != 0; }
  [[nodiscard]] __device__ __forceinline__ uint32* times() const { return bounds + blocks + 1; }

  // In which launches blocks measure: the first ones, then some, as clocks change.
  [[nodiscard]] static __device__ __forceinline__ bool measures(uint32 launch) {
    return launch < 24 || launch % 32 == 0;
  }

  // By one warp, when all blocks have left their times; a block that had nothing to do left 0.
  __device__ __noinline__ void update() const {
    const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
    const float alike = static_cast<float>(kAllPaces) / static_cast<float>(blocks);
    const bool known = are_known();
    float sum = 0.0f, count = 0.0f;
#pragma unroll 1
    for (int b = lane; b < blocks; b += kWarpThreads) {
      sum += static_cast<float>(times()[b]);
      count += times()[b] != 0 ? 1.0f : 0.0f;
    }
    const float mean = warp_sum(sum) / fmaxf(warp_sum(count), 1.0f);
    sum = 0.0f;
#pragma unroll 1
    for (int b = lane; b < blocks; b += kWarpThreads) {
      const float of_mean = times()[b] != 0 ? mean / static_cast<float>(times()[b]) : 1.0f;
      const float change = 0.5f + 0.5f * fminf(fmaxf(of_mean, 0.8f), 1.25f);  // half of it: times vary
      const float before = known ? static_cast<float>(bounds[b + 1] - bounds[b]) : alike;
      const float width = fminf(fmaxf(before * change, 0.7f * alike), 1.4f * alike);
      times()[b] = __float_as_uint(width);
      sum += width;
    }
    const float scale = static_cast<float>(kAllPaces) / warp_sum(sum);
    __syncwarp();  // all bounds have been read
    float before = 0.0f;
#pragma unroll 1
    for (int first = 0; first < blocks; first += kWarpThreads) {
      const int b = first + lane;
      float end = b < blocks ? __uint_as_float(times()[b]) : 0.0f;
#pragma unroll
      for (int distance = 1; distance < kWarpThreads; distance *= 2) {
        const float other = __shfl_up_sync(kAllLanes, end, distance);
        if (lane >= distance) end += other;
      }
      end += before;
      before = __shfl_sync(kAllLanes, end, kWarpThreads - 1);
      if (b < blocks) times()[b] = 0;  // a block without work leaves none
      if (b < blocks) bounds[b + 1] = b + 1 == blocks ? kAllPaces : static_cast<uint32>(end * scale);
    }
  }
};

}  // namespace attend
