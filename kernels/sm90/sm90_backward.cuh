// sm90_backward: computes dq (as float sums), dk and dv of o = softmax(s) v on sm90, with wgmma and TMA copies.
//
//   p = exp(s - lse)   dv = p^T dout   ds = p (dout v^T - delta)   dk = scale ds^T q   dq = scale ds k
//
// Shapes   q, dout, o (batch, heads, seqlen_q, .), k, v (batch, heads_k, seqlen_k, .), as in Sm90BackwardArgs.
// Supports float16 and bfloat16, head dimensions up to 128 (sm90_backward_wide_keys.cuh handles larger ones), full,
//          causal and window masks, a position term (ALiBi), a transform (softcap), dropout, packed sequences, grouped
//          heads, and any lengths. A position term excludes windows that do not end on the diagonal. It also excludes
//          dropout if a head dimension is above 64. A transform excludes dropout. Strides and addresses are multiples
//          of 16 bytes, and no stride is 0. Requires sm_90a.
// Work     A thread block processes 128 keys, or 192 if q, k and v have head dimensions of at most 64. It iterates over
//          the tiles of 64 query rows that see these keys, for all query heads of the group. dk and dv stay in
//          registers. Each tile needs five matrix products, all computed in one pass. TMA adds dq to float sums in
//          global memory, and sm90_backward_finish.cuh rounds these sums. The order of the additions is fixed only if
//          kIsDeterministic is set. If kOwnsHeads is set, a thread block processes all key blocks of a head, one after
//          another, and rounds dq itself, in a fixed order (sm90_backward_own_rows.cuh).
// Roles    Warpgroup 0 computes dq (sm90_backward_query.cuh). Two or three computing warpgroups compute the other four
//          products (sm90_backward_compute.cuh). Thread blocks are persistent if a head dimension is above 64 or if
//          kOwnsHeads is set. The last warpgroup of a persistent block loads the tiles (sm90_backward_load.cuh) and
//          issues the additions of dq. In other blocks warpgroup 0 does both (sm90_backward_narrow.cuh).
// Memory   Shared memory is described in sm90_backward_layout.cuh. The workspace in global memory has a float dq, and
//          two floats per query row (sm90_backward_workspace.cuh).
// Limits   A NaN or inf in a row of dout, q, k or v can spread to other results of the same tile. Sequences are shorter
//          than 2^30.
// Source   Dao, FlashAttention-2 (2023), Algorithm 2; docs/hopper_backward.md
#pragma once

#include "../isa/setmaxnreg.cuh"
#include "sm90_backward_compute.cuh"
#include "sm90_backward_load.cuh"
#include "sm90_backward_narrow.cuh"
#include "sm90_backward_query.cuh"

namespace attend {

// Runs a computing warpgroup of a persistent thread block. A work item is a block of keys with the query tiles that see
// it.
template <class Config>
__device__ __forceinline__ void compute_items(Sm90BackwardStorage<Config>& smem, const Sm90BackwardArgs& args,
                                              int warpgroup) {
  BackwardComputer<Config> computer(smem, args, warpgroup);
#pragma unroll 1
  for (uint32 number = 0;; ++number) {
    const Sm90BackwardItem& item = wait_for_item(smem, number);
    if (uniform(item.is_end())) break;
    computer.compute(item, number & 1);
    release_item(smem, number);
  }
  computer.finish();
}

template <class Config>
__device__ __forceinline__ void sm90_backward_persistent(Sm90BackwardStorage<Config>& smem,
                                                         const Sm90BackwardArgs& args, int warpgroup) {
  constexpr int kLoader = BackwardShape<Config>::kWarpgroups + 1;
  if (warpgroup == 0) {
    give_registers<Config::kQueryRegisters>();
    BackwardQueryWarpgroup<Config>(smem, args).run();
  } else if (warpgroup == kLoader) {
    give_registers<Config::kLoadRegisters>();
    const int warp = static_cast<int>(__shfl_sync(0xffffffffu, threadIdx.x / 32 % 4, 0));
    if (warp == 0) {
      BackwardLoader<Config>(smem, args).run();
    } else if (warp <= Config::kStagingBuffers && threadIdx.x % 32 == 0) {
      reduce_dq(smem, args, warp - 1);
    }
  } else {
    take_registers<Config::kComputeRegisters>();
    compute_items(smem, args, warpgroup - 1);
  }
}

template <class Config>
__device__ __forceinline__ void sm90_backward_narrow(Sm90BackwardStorage<Config>& smem, const Sm90BackwardArgs& args,
                                                     int warpgroup) {
  const Sm90BackwardItem& item = smem.items[0];
  if (item.is_end()) return;
  if (warpgroup == 0) {
    give_registers<Config::kQueryRegisters>();
    if (item.begin < item.end) NarrowQueryWarpgroup<Config>(smem, args, item).run();
  } else {
    take_registers<Config::kComputeRegisters>();
    BackwardComputer<Config> computer(smem, args, warpgroup - 1);
    computer.compute(item, 0);
    computer.finish();
  }
}

// Computes this thread block's share of dq, dk and dv. Grid: sm90_backward_blocks(), with Config::kThreads threads per
// block.
template <class Config>
__device__ void sm90_backward(const Sm90BackwardArgs& args) {
  constexpr bool kIsPersistent = BackwardShape<Config>::kTile.is_persistent;
  auto& smem = shared_storage<Sm90BackwardStorage<Config>, Config>();
  if (threadIdx.x == 0) {
    smem.init_barriers();
    if constexpr (!kIsPersistent) {
      if (!make_item<Config>(smem.items[0], args, blockIdx.x)) smem.items[0].key = -1;
    }
  }
  __syncthreads();  // the barriers are initialised, so all threads may use them
  const int warpgroup = static_cast<int>(__shfl_sync(0xffffffffu, threadIdx.x / kWarpgroup, 0));
  if constexpr (kIsPersistent) {
    sm90_backward_persistent(smem, args, warpgroup);
  } else {
    sm90_backward_narrow(smem, args, warpgroup);
  }
}

}  // namespace attend
