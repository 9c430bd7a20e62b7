// Attention of a few query rows of each sequence over a cache of keys and values.
//
// Shapes:   see DecodeArgs. Lengths, strides and pages are arbitrary.
// Work:     A unit is 64 keys, and each block gets an equal share of all units (decode_schedule.cuh).
// Block:    Two warps load keys and values into a ring (decode_loader.cuh). Teams of four warps compute. Each warp has
//           16 of the 64 keys of a step in S^T = K Q^T, and a quarter of the columns in O^T += V^T P^T
//           (decode_leaf.cuh). If there are many rows, two warpgroups compute S = Q K^T and O += P V instead. Either
//           each warpgroup computes every second leaf (decode_warpgroup_steps.cuh), or each has half of the columns of
//           o in every leaf (decode_columns_steps.cuh).
// Order:    Keys are summed within a leaf, and leaves are merged along a tree of key positions (decode_tree.cuh,
//           decode_state.cuh). The order is the same for every grid. Blocks exchange nodes of the tree
//           (decode_exchange.cuh).
// Source:   Dao, Haziza, Massa & Sizov, Flash-Decoding for long-context inference (2023).
#pragma once

#include "../isa/grid_dependency.cuh"
#include "../isa/setmaxnreg.cuh"
#include "../isa/tma.cuh"
#include "decode_compute.cuh"
#include "decode_loader.cuh"

namespace attend {

// Loads the arguments, which lie in constant memory, into the caches. One warp does this while the previous kernel
// ends. Otherwise the first use of each line would wait for memory. `room` is shared memory for one word of each lane,
// which is never read.
template <bool kHasBoxes>
__device__ __forceinline__ void fetch_arguments(const DecodeArgs& args, uint32* room, int lane) {
  constexpr int kLine = 64;
  static_assert(sizeof(DecodeArgs) % kLine == 0 && sizeof(DecodeArgs) / kLine <= kWarpThreads);
  if (lane < static_cast<int>(sizeof(DecodeArgs) / kLine)) {
    constexpr int kWords = kLine / sizeof(uint32);
    room[lane] = reinterpret_cast<const uint32*>(&args)[lane * kWords];
  }
  if (kHasBoxes && lane == 0) {
    tma_prefetch_map(args.k_map);
    tma_prefetch_map(args.v_map);
  }
}

// Runs a role with the block's schedule. The two roles of warps are computing and loading. The first schedule is
// computed from the arrays' contents while the previous kernel still runs. If the contents have changed when that
// kernel ends, the schedule and the work start again.
template <class Config, class Role>
__device__ __forceinline__ void run(const DecodeContext<Config>& block, DecodeSchedule<Config>& schedule,
                                    DecodeCursor<Config>& first, bool makes_schedule, Role& role) {
#pragma unroll 1
  for (bool is_early = keeps_sequences<Config>(block.args);; is_early = false) {
    if (!is_early) wait_for_kernels_before();
    if (makes_schedule) first.start(block.args, schedule, kept_sequences<Config>(block.args, block.smem));
    block_barrier<Config>();  // waits until the schedule, the block's first piece and the barriers of the ring are
                              // ready to be used
    block.cursor.restart(first);
    if (role.run(is_early)) return;
  }
}

template <class Config>
__device__ __forceinline__ void decode(const DecodeArgs& args) {
  using Sizes = DecodeSizes<Config>;
  using Cursor = DecodeCursor<Config>;
  using Schedule = DecodeSchedule<Config>;
  static_assert(sizeof(Cursor) <= kDecodeCursorBytes && sizeof(Schedule) <= kDecodeCursorBytes);
  extern __shared__ __align__(kSwizzleAtom) char smem[];
  constexpr DecodeSmem kSmem = Sizes::kSmem;
  constexpr int kComputeWarps = Sizes::kComputeThreads / kWarpThreads;
  // Registers of a thread in each role. If registers were not moved, each thread of the three warpgroups would have 168
  constexpr bool kMovesRegisters = decode_moves_registers(Sizes::kTile);
  constexpr int kComputeRegisters = 232, kLoadRegisters = 40;
  const int warp = static_cast<int>(threadIdx.x) / kWarpThreads, lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  char* cursors = smem + kSmem.cursors;
  Schedule& schedule = *reinterpret_cast<Schedule*>(cursors);
  Cursor& first = *reinterpret_cast<Cursor*>(cursors + kDecodeCursorBytes);
  Cursor& cursor = *reinterpret_cast<Cursor*>(cursors + (2 + warp) * kDecodeCursorBytes);
  const DecodeRing<Config> ring = {smem};
  if (warp == 2) fetch_arguments<Config::kHasBoxes>(args, reinterpret_cast<uint32*>(smem + kSmem.maxima), lane);
  const DecodeContext<Config> block = {args, schedule, first, cursor, ring, smem};
  if (warp == 1) {
    ring.init(lane);
    if (lane == 0) block.told().ended = ended_blocks(args);
  }
  if (warp < kComputeWarps) {
    if constexpr (kMovesRegisters) take_registers<kComputeRegisters>();
    DecodeCompute<Config> compute(block);
    run(block, schedule, first, warp == 0, compute);
    if (threadIdx.x == 0) end_launch(args);
  } else {
    if constexpr (kMovesRegisters) give_registers<kLoadRegisters>();
    if (warp >= Sizes::kBusyThreads / kWarpThreads) return;
    DecodeLoader<Config> loader(block, warp - kComputeWarps, lane);
    run(block, schedule, first, false, loader);
    if (warp == kComputeWarps && first.merges) list_all<Config>(block);
  }
}

}  // namespace attend
