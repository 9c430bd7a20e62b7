// The sequence of tiles that a block of a persistent kernel computes. Tiles are numbered. work.cuh maps a number to a
// tile of a head, and so determines the order in which tiles start.
#pragma once

#include "../common/config_enums.cuh"
#include "../common/portable.cuh"
#include "../common/warp_reduce.cuh"

namespace attend {

// Returns the number of the block's next tile after tile `index`. If the schedule is kDynamic, `counter` points to a
// counter of the grid in memory, which must be 0 before each launch. Otherwise it is not read.
template <Schedule kSchedule>
[[nodiscard]] __device__ __forceinline__ uint32 next_index(uint32 index, uint32* counter) {
  if constexpr (kSchedule == Schedule::kDynamic) {
    return gridDim.x + atomicAdd(counter, 1u);
  } else {
    return index + gridDim.x;
  }
}

// The tiles of a block, as one warp sees them. All lanes have the same tile.
template <Schedule kSchedule>
class TileQueue {
 public:
  __device__ __forceinline__ TileQueue() : index_(blockIdx.x) {}

  // Returns the number of the current tile. The number may lie beyond the last tile.
  [[nodiscard]] __device__ __forceinline__ uint32 index() const { return index_; }

  // take() requests the number of the next tile early. advance() makes this tile the current one. See next_index() for
  // `counter`.
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
