// The warpgroups of the sm90 backward kernels, and how many registers each of their threads has. Host and device.
//
// All threads of a block start with the same number of registers. Some warpgroups then give registers back, and others
// take them (setmaxnreg). ptxas places the operands of wgmma from register 24 on: of N registers, N - 26 can hold
// accumulators and A operands that are alive between the first product and the wait for the last.
#pragma once

#include "../common/portable.cuh"

namespace attend {

constexpr int kBackwardWarpgroupThreads = 128;

// Registers are counted per thread. A count of 0 says that the block has no such warpgroup.
struct Sm90BackwardRegisters {
  int computing;  // warpgroups that compute p, ds and gradients
  int compute;    // registers of each of them
  int query;      // registers of the warpgroup that only computes dq
  int load;       // registers of the warpgroup that only loads

  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int threads() const {
    return (computing + (query > 0 ? 1 : 0) + (load > 0 ? 1 : 0)) * kBackwardWarpgroupThreads;
  }
  // Registers that the warpgroups have together, per thread of one.
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int sum() const { return computing * compute + query + load; }
};

// Both head dimensions at most 64: the warpgroup that computes dq also loads.
// dk and dv take 64 registers, s or dp 32, p 16: 112 of the 118 that products can have.
constexpr Sm90BackwardRegisters kBackwardNarrowRegisters = {.computing = 3, .compute = 144, .query = 80, .load = 0};

// Both at most 128.
// dk and dv take 128 registers, s or dp 32, p 16: 176 of 182.
constexpr Sm90BackwardRegisters kBackwardPersistentRegisters = {
    .computing = 2, .compute = 208, .query = 64, .load = 32};

// Larger ones, scores with a term from memory, or transformed ones beside dropping: a kernel for dk and dv, and one for
// dq.
// dk or dv takes 128 registers, s or dp 32, ds or p 16; in the other kernel dq takes 128, s 32, dp 32, ds 16: 208 of
// 214.
constexpr Sm90BackwardRegisters kBackwardWideRegisters = {.computing = 2, .compute = 240, .query = 0, .load = 24};

// Registers that the warpgroups of a block start with together, per thread of one. The hardware gives a thread a
// multiple of 8: 384 threads start with 168 registers each, and not with 170.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int sm90_backward_start_registers(int threads) {
  constexpr int kRegistersOfMultiprocessor = 65536;
  constexpr int kUnit = 8;
  return kRegistersOfMultiprocessor / threads / kUnit * kUnit * (threads / kBackwardWarpgroupThreads);
}

// A warpgroup that asks for more registers than others have given back waits for ever.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr bool sm90_backward_registers_suffice(
    const Sm90BackwardRegisters& registers) {
  return registers.sum() <= sm90_backward_start_registers(registers.threads());
}
static_assert(sm90_backward_registers_suffice(kBackwardNarrowRegisters));      // 3 x 144 + 80 = 4 x 128
static_assert(sm90_backward_registers_suffice(kBackwardPersistentRegisters));  // 2 x 208 + 64 + 32 = 4 x 128
static_assert(sm90_backward_registers_suffice(kBackwardWideRegisters));        // 2 x 240 + 24 = 3 x 168

}  // namespace attend
