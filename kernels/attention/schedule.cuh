// The sequence of tiles that a block of a persistent kernel works on. Tiles have numbers. work.cuh maps a number to a
// tile of a head, and so determines the order in which tiles start.
#pragma once

#include "../common/config_enums.cuh"
#include "../common/portable.cuh"
#include "../common/warp_reduce.cuh"

namespace attend {

// Returns the number of the block's next tile after tile `index`. counter: for kDynamic, a counter of the grid in
// memory, 0 before each launch; otherwise it is not read.
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

  // Returns the number of the current tile. It may be beyond the last.
  [[nodiscard]] __device__ __forceinline__ uint32 index() const { return index_; }

  // take() requests the next tile early; advance() moves to it. counter: see next_index().
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
