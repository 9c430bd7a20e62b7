// Token that the computing warpgroups of the sm90 backward pass hand to each other.
#pragma once

#include "../isa/thread_barrier.cuh"
#include "../isa/wgmma.cuh"
#include "sm90_backward_storage.cuh"

namespace attend {

// Each warpgroup takes the token once per tile and passes it to the next one. So the warpgroups stay in different
// phases.
template <class Config>
struct BackwardToken {
  static constexpr int kWarpgroups = BackwardShape<Config>::kWarpgroups;
  static constexpr int kFirstBarrier = 8;          // named barriers 8, 9, ...: one per warpgroup
  static constexpr int kThreads = 2 * kWarpgroup;  // the warpgroup that takes the token and the one that passes it
  int warpgroup;

  // Gives the first warpgroup its initial token, because no other warpgroup precedes it. The last one passes that
  // token.
  __device__ __forceinline__ void begin() const {
    if (warpgroup == kWarpgroups - 1) thread_barrier_arrive(kFirstBarrier, kThreads);
  }
  // Takes back the token that the last warpgroup passed after its last tile. The first warpgroup does this.
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
