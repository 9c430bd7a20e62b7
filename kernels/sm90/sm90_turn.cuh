// The order in which consumer warpgroups issue products, enforced by named barriers.
#pragma once

#include "../isa/named_barrier.cuh"
#include "../isa/wgmma.cuh"

namespace attend {

// Consumers issue their products in turn. While one consumer computes its softmax, the products of another one run.
template <class Config>
struct Sm90Turn {
  static constexpr int kFirstBarrier = 1;
  static constexpr int kThreads = 2 * kWarpgroup;  // threads of the consumer that waits and of the one that passes its
                                                   // turn
  int consumer;

  // Gives consumer 0 its first turn. No other consumer precedes it, so the last consumer passes the turn on behalf of a
  // predecessor.
  __device__ __forceinline__ void begin() const {
    if (consumer == Config::kConsumers - 1) pass();
  }
  __device__ __forceinline__ void wait() const {
    if constexpr (Config::kPingPong) barrier_wait<kThreads>(kFirstBarrier + consumer);
  }
  __device__ __forceinline__ void pass() const {
    if constexpr (Config::kPingPong) {
      barrier_arrive<kThreads>(kFirstBarrier + (consumer == Config::kConsumers - 1 ? 0 : consumer + 1));
    }
  }
};

}  // namespace attend
