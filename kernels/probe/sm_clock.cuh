// How fast a multiprocessor's clock runs at this moment: cycles against nanoseconds of the device's own timer.
//
// One thread. Who calls it: the benchmarks, right after the kernels they timed, since the clock follows load and power.
#pragma once

#include "../common/portable.cuh"

namespace attend {

struct ClockArgs {
  int64* cycles_and_ns;  // (2)
  int64 least_ns;        // how long to look
};

__device__ __forceinline__ int64 global_timer_ns() {
  int64 ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns)::"memory");
  return ns;
}

template <class Config>
__device__ void sm_clock(const ClockArgs& args) {
  const int64 start_ns = global_timer_ns();
  const int64 start_cycles = clock64();
  int64 ns = start_ns;
  while (ns - start_ns < args.least_ns) ns = global_timer_ns();
  args.cycles_and_ns[0] = clock64() - start_cycles;
  args.cycles_and_ns[1] = ns - start_ns;
}

}  // namespace attend
