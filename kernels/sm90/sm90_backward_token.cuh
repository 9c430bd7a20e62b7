// The token that the computing warpgroups of the sm90 backward pass hand to each other. A warpgroup holds it while it
// issues the products dk, s and dv.
#pragma once

#include "../isa/thread_barrier.cuh"
#include "../isa/wgmma.cuh"
#include "sm90_backward_storage.cuh"

namespace attend {

// Each warpgroup takes the token once per query tile and passes it to the next warpgroup. So the warpgroups execute
// different steps at the same time.
template <class Config>
struct BackwardToken {
  static constexpr int kWarpgroups = BackwardShape<Config>::kWarpgroups;
  static constexpr int kFirstBarrier = 8;          // first of the named barriers, one per warpgroup
  static constexpr int kThreads = 2 * kWarpgroup;  // threads of the warpgroup that takes the token and of the one that
                                                   // passes it
  int warpgroup;

  // Gives the first warpgroup its initial token. No warpgroup precedes it, so the last warpgroup passes this token.
  __device__ __forceinline__ void begin() const {
    if (warpgroup == kWarpgroups - 1) thread_barrier_arrive(kFirstBarrier, kThreads);
  }
  // Takes the token that the last warpgroup passed after its last tile, so that no arrival is left over. Only the first
  // warpgroup does this.
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
