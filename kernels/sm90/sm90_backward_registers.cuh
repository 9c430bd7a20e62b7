// Defines the warpgroups of the sm90 backward kernels and the registers of their threads. Shared by host and device.
//
// All threads of a block start with the same number of registers. Then some warpgroups release registers and others
// acquire them (setmaxnreg). ptxas allocates wgmma operands from register 24 on. So of N registers, N - 26 can hold
// accumulators and A operands between the first product and the wait for the last product.
#pragma once

#include "../common/portable.cuh"

namespace attend {

constexpr int kBackwardWarpgroupThreads = 128;

// Register counts are per thread. A count of 0 means that the block has no warpgroup with this role.
struct Sm90BackwardRegisters {
  int computing;  // number of warpgroups that compute p, ds and gradients
  int compute;    // registers of a computing warpgroup
  int query;      // registers of the warpgroup that only computes dq
  int load;       // registers of the warpgroup that only loads

  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int threads() const {
    return (computing + (query > 0 ? 1 : 0) + (load > 0 ? 1 : 0)) * kBackwardWarpgroupThreads;
  }
  // Returns the registers per thread, summed over all warpgroups.
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int sum() const { return computing * compute + query + load; }
};

// Used if both head dimensions are at most 64 and blocks are not persistent. The warpgroup that computes dq also loads
// tiles. In a computing warpgroup, dk and dv need 64 registers, s or dp 32 and p 16. These are 112 of the 118 registers
// that products can use.
constexpr Sm90BackwardRegisters kBackwardNarrowRegisters = {.computing = 3, .compute = 144, .query = 80, .load = 0};

// Used if both head dimensions are at most 128. dk and dv need 128 registers, s or dp 32 and p 16: 176 of 182.
constexpr Sm90BackwardRegisters kBackwardPersistentRegisters = {
    .computing = 2, .compute = 208, .query = 64, .load = 32};

// Used for larger head dimensions, scores with a bias, and transformed scores with dropout. One kernel computes dk and
// dv, and another kernel computes dq. In the first kernel, dk or dv needs 128 registers, s or dp 32, and ds or p 16. In
// the second kernel, dq needs 128, s 32, dp 32 and ds 16. These are 208 of the 214 registers that products can use.
constexpr Sm90BackwardRegisters kBackwardWideRegisters = {.computing = 2, .compute = 240, .query = 0, .load = 24};

// Returns the registers per thread at the start of a block, summed over all warpgroups. At that time all threads have
// the same number of registers. The hardware allocates multiples of 8 per thread. For example, 384 threads start with
// 168 registers each, not with 170.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int sm90_backward_start_registers(int threads) {
  constexpr int kRegistersOfMultiprocessor = 65536;
  constexpr int kUnit = 8;
  return kRegistersOfMultiprocessor / threads / kUnit * kUnit * (threads / kBackwardWarpgroupThreads);
}

// Returns whether the hardware can provide these registers. A warpgroup that requests more registers than others
// release would wait forever.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr bool sm90_backward_registers_suffice(
    const Sm90BackwardRegisters& registers) {
  return registers.sum() <= sm90_backward_start_registers(registers.threads());
}
static_assert(sm90_backward_registers_suffice(kBackwardNarrowRegisters));      // 3 x 144 + 80 = 4 x 128
static_assert(sm90_backward_registers_suffice(kBackwardPersistentRegisters));  // 2 x 208 + 64 + 32 = 4 x 128
static_assert(sm90_backward_registers_suffice(kBackwardWideRegisters));        // 2 x 240 + 24 = 3 x 168

}  // namespace attend
