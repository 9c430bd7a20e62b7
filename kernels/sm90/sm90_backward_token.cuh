// The token that goes round the computing warpgroups of the sm90 backward pass.
#pragma once

#include "../isa/thread_barrier.cuh"
#include "../isa/wgmma.cuh"
#include "sm90_backward_storage.cuh"

namespace attend {

// Each warpgroup takes the token once a tile and passes it to the next one. So the warpgroups stay in different phases.
template <class Config>
struct BackwardToken {
  static constexpr int kWarpgroups = BackwardShape<Config>::kWarpgroups;
  static constexpr int kFirstBarrier = 8;          // named barriers 8, 9, ...: one a warpgroup
  static constexpr int kThreads = 2 * kWarpgroup;  // the warpgroup that takes, and the one that passes
  int warpgroup;

  // No warpgroup comes before the first: the last one passes the token to it.
  __device__ __forceinline__ void begin() const {
    if (warpgroup == kWarpgroups - 1) thread_barrier_arrive(kFirstBarrier, kThreads);
  }
  // After the last tile: the first warpgroup takes back the token that the last one passed.
  __device__ __forceinline__ void end() const {
    if (warpgroup == 0) thread_barrier_sync(kFirstBarrier, kThreads);
  }
  __device__ __forceinline__ void take() const { thread_barrier_sync(kFirstBarrier + warpgroup, kThreads); }
  __device__ __forceinline__ void pass() const {
    const int next = warpgroup + 1;
    thread_barrier_arrive(kFirstBarrier + (next == kWarpgroups ? 0 : next), kThreads);
  }
};

}  // namespace attend
