// Which tiles a block of a persistent kernel works on, one after the other. Tiles have numbers: work.cuh says which
// tile of which head a number means, and so in which order tiles start.
#pragma once

#include "../common/config_enums.cuh"
#include "../common/portable.cuh"
#include "../common/warp_reduce.cuh"

namespace attend {

// The number of the block's tile after tile `index`. counter: kDynamic: of the grid, in memory, 0 before each launch;
// otherwise it is not read.
template <Schedule kSchedule>
[[nodiscard]] __device__ __forceinline__ uint32 next_index(uint32 index, uint32* counter) {
  if constexpr (kSchedule == Schedule::kDynamic) {
    return gridDim.x + atomicAdd(counter, 1u);
  } else {
    return index + gridDim.x;
  }
}

// The tiles of a block, for one warp; all lanes have the same tile.
template <Schedule kSchedule>
class TileQueue {
 public:
  __device__ __forceinline__ TileQueue() : index_(blockIdx.x) {}

  // The number of the present tile. It may be beyond the last.
  [[nodiscard]] __device__ __forceinline__ uint32 index() const { return index_; }

  // take() asks for the next tile, early; advance() goes to it. counter: as for next_index().
  __device__ __forceinline__ void take(uint32* counter) {
    if (kSchedule == Schedule::kStatic || threadIdx.x % 32 == 0) next_ = next_index<kSchedule>(index_, counter);
  }
  __device__ __forceinline__ void advance() {
    index_ = kSchedule == Schedule::kDynamic ? __shfl_sync(kAllLanes, next_, 0) : next_;
  }

 private:
  uint32 index_;
  uint32 next_ = 0;
};

}  // namespace attend
