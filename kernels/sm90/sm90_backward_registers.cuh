// Warpgroups of the sm90 backward kernels, and the registers of each of their threads. Shared by host and device.
//
// All threads of a block start with the same number of registers. Some warpgroups then release registers, and others
// acquire them (setmaxnreg). ptxas places wgmma operands from register 24 on. So of N registers, N - 26 can hold
// accumulators and A operands that are alive between the first product and the wait for the last.
#pragma once

#include "../common/portable.cuh"

namespace attend {

constexpr int kBackwardWarpgroupThreads = 128;

// Registers are counted per thread. A count of 0 means that the block has no such warpgroup.
struct Sm90BackwardRegisters {
  int computing;  // number of warpgroups that compute p, ds and gradients
  int compute;    // registers of each of them
  int query;      // registers of the warpgroup that only computes dq
  int load;       // registers of the warpgroup that only loads

  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int threads() const {
    return (computing + (query > 0 ? 1 : 0) + (load > 0 ? 1 : 0)) * kBackwardWarpgroupThreads;
  }
  // Returns the sum, over all warpgroups, of the registers per thread.
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int sum() const { return computing * compute + query + load; }
};

// Both head dimensions are at most 64. The warpgroup that computes dq also loads. dk and dv need 64 registers, s or dp
// 32, p 16: 112 of the 118 that are available to products.
constexpr Sm90BackwardRegisters kBackwardNarrowRegisters = {.computing = 3, .compute = 144, .query = 80, .load = 0};

// Both head dimensions are at most 128. dk and dv need 128 registers, s or dp 32, p 16: 176 of 182.
constexpr Sm90BackwardRegisters kBackwardPersistentRegisters = {
    .computing = 2, .compute = 208, .query = 64, .load = 32};

// Larger head dimensions, scores with a bias, or transformed scores with dropout. One kernel computes dk and dv,
// another computes dq. In the first, dk or dv needs 128 registers, s or dp 32, ds or p 16. In the second, dq needs 128,
// s 32, dp 32, ds 16: 208 of 214.
constexpr Sm90BackwardRegisters kBackwardWideRegisters = {.computing = 2, .compute = 240, .query = 0, .load = 24};

// Returns that sum at the start of a block, when all threads have the same number of registers. The hardware allocates
// multiples of 8 per thread: 384 threads start with 168 registers each, not with 170.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int sm90_backward_start_registers(int threads) {
  constexpr int kRegistersOfMultiprocessor = 65536;
  constexpr int kUnit = 8;
  return kRegistersOfMultiprocessor / threads / kUnit * kUnit * (threads / kBackwardWarpgroupThreads);
}

// Returns whether these registers suffice. A warpgroup that requests more than the others release would wait forever.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr bool sm90_backward_registers_suffice(
    const Sm90BackwardRegisters& registers) {
  return registers.sum() <= sm90_backward_start_registers(registers.threads());
}
static_assert(sm90_backward_registers_suffice(kBackwardNarrowRegisters));      // 3 x 144 + 80 = 4 x 128
static_assert(sm90_backward_registers_suffice(kBackwardPersistentRegisters));  // 2 x 208 + 64 + 32 = 4 x 128
static_assert(sm90_backward_registers_suffice(kBackwardWideRegisters));        // 2 x 240 + 24 = 3 x 168

}  // namespace attend
