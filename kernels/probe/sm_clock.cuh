// Measures the current clock rate of a multiprocessor, by comparing cycles with nanoseconds of the device's timer.
//
// One thread runs the kernel. Benchmarks start it right after the timed kernels, because the clock rate depends on load
// and power.
#pragma once

#include "../common/portable.cuh"

namespace attend {

struct ClockArgs {
  int64* cycles_and_ns;  // (2). Entry 0 receives the elapsed cycles, and entry 1 the elapsed nanoseconds
  int64 least_ns;        // shortest duration of the measurement
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
