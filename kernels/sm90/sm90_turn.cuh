// Turns of the consumer warpgroups, made with named barriers.
#pragma once

#include "../isa/named_barrier.cuh"
#include "../isa/wgmma.cuh"

namespace attend {

// Consumers take turns to issue products, so that the softmax of one overlaps with the products of another.
template <class Config>
struct Sm90Turn {
  static constexpr int kFirstBarrier = 1;
  static constexpr int kThreads = 2 * kWarpgroup;  // the consumer that waits and the one that passes
  int consumer;

  // Gives the first consumer its first turn, because no other consumer precedes it. The last consumer passes that turn.
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
