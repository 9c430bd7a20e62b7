// The warpgroup that computes dq in the sm90 backward pass, and the code that adds its results to sums in memory.
//
//   dq += ds k, for all keys of the key block; each pass computes 64 query rows and 64 columns of dq
//
// A bulk copy adds each pass to float sums in global memory. It reads the pass from a staging buffer in shared memory,
// which has the layout of the accumulator. Only the code that rounds the sums depends on this layout: the finish kernel
// or finish_tile(). The stores into the staging buffer limit the speed of the entire backward pass. They wait until the
// products of the computing warpgroups leave some of the shared memory bandwidth unused.
#pragma once

#include "../isa/bulk_copy.cuh"
#include "../isa/wgmma_fresh.cuh"
#include "sm90_backward_captures.cuh"
#include "sm90_backward_own_rows.cuh"
#include "sm90_backward_schedule.cuh"
#include "sm90_backward_storage.cuh"
#include "sm90_backward_workspace.cuh"

namespace attend {

// Issues and commits acc = ds k of one pass, or acc += ds k if kAdds is set. The product covers the keys of the first
// `warpgroups` computing warpgroups. This number must be a compile-time constant after inlining. wait_ds(w) must return
// once ds of warpgroup w is stored.
template <class Config, bool kAdds = false, class WaitDs>
__device__ __forceinline__ void begin_ds_k(float (&acc)[32], Sm90BackwardStorage<Config>& smem, uint32 buffer, int pass,
                                           int warpgroups, WaitDs wait_ds) {
  using Shape = BackwardShape<Config>;
  constexpr int kSteps = kWarpgroupRows / kWgmmaDepth;  // products of depth 16 for the keys of one warpgroup
  constexpr int kStepBytes = kWgmmaDepth * sizeof(Bits16);
  const MatrixDescriptor a = MatrixDescriptor::along_rows(smem_address(smem.ds[buffer]));
  const MatrixDescriptor b =
      MatrixDescriptor::down_columns(smem_address(smem.k) + pass * Shape::kPanelBytesN, Shape::kPanelBytesN);
#pragma unroll
  for (int i = 0; i < kSteps * warpgroups; ++i) {
    if (i % kSteps == 0 && pass == 0) wait_ds(i / kSteps);
    if (i % kSteps == 0 && (pass == 0 || i == 0)) wgmma_fence();
    const MatrixDescriptor ds = a.advance(i / kSteps * Shape::kPanelBytesM + i % kSteps * kStepBytes);
    const MatrixDescriptor k = b.advance(i * kWgmmaDepth * kSwizzleBytes);
    if (i == 0 && !kAdds) {
      WgmmaFresh<Config::kElement>::template ss<true>(acc, ds, k);
    } else {
      WgmmaOp<Config::kElement, 64>::template ss<true, 1>(acc, ds, k, true);
    }
  }
  wgmma_commit();
}

// Returns the float offset of this warp's part of a pass. The offset is the same in a staging buffer and in the sums.
template <class Config>
[[nodiscard]] __device__ __forceinline__ int warp_part_of_pass(int warp) {
  return warp * (BackwardShape<Config>::kPassFloats / 4);
}

// Writes the accumulator to shared memory as floats of shape (8, 32 lanes, 4).
__device__ __forceinline__ void stage_accumulator(const float (&acc)[32], float* smem) {
  const uint32 to = smem_address(smem) + threadIdx.x % 32 * 16;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to + j * 512), "f"(acc[4 * j]), "f"(acc[4 * j + 1]),
                 "f"(acc[4 * j + 2]), "f"(acc[4 * j + 3])
                 : "memory");
  }
}

// The first and the last key block that a query tile sees.
struct BackwardKeyBlocks {
  int first, last;

  template <class Config>
  [[nodiscard]] static __device__ __forceinline__ BackwardKeyBlocks of(const Sm90BackwardItem& item,
                                                                       const BackwardBand& band, int tile) {
    const int row = tile * kBackwardRows;
    const int last_row = min(row + kBackwardRows, item.seqlen_q) - 1;
    const int first_key = max(0, row + item.offset() - band.left);  // the tile sees keys first_key to last_key
    const int last_key = min(last_row + item.offset() + band.right, item.seqlen_k - 1);
    return {first_key / Config::kBlockN, last_key / Config::kBlockN};
  }
};

// Returns the number of key blocks that add to the query tile before this key block, or 0 if additions have no fixed
// order. The tile must see this key block. With a block mask, `tile` is an index into its lists.
template <class Config>
[[nodiscard]] __device__ __forceinline__ uint32 blocks_before(const Sm90BackwardArgs& args,
                                                              const Sm90BackwardItem& item, const BackwardBand& band,
                                                              int tile) {
  if constexpr (!Config::kIsDeterministic) return 0;
  if constexpr (has_block_mask<Config>()) return backward_row_lists<Config>(args).blocks_before(tile);
  const auto seen = BackwardKeyBlocks::of<Config>(item, band, tile);
  const auto order = Sm90BackwardOrder::of((item.seqlen_k + Config::kBlockN - 1) / Config::kBlockN,
                                           kBackwardTile<Config>.is_persistent);
  return static_cast<uint32>(order.before(item.key / Config::kBlockN, seen.first, seen.last));
}

// Waits until the counter equals `turn`. Afterwards all earlier additions are complete. Only one thread calls this.
__device__ __forceinline__ void wait_turn(const uint32* counter, uint32 turn) {
  uint32 value;
  do {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(counter) : "memory");
  } while (value != turn);
}

// Reads the counter without waiting. If the value equals the thread's turn, the thread may add after
// complete_additions().
[[nodiscard]] __device__ __forceinline__ uint32 peek_turn(const uint32* counter) {
  uint32 value;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(counter) : "memory");
  return value;
}

// Waits until this thread's additions are complete. Must be called before set_turn(). The latency of the fence grows
// with the amount of data just added. The fence releases these additions. If peek_turn() has found this thread's turn,
// the fence also acquires all earlier additions.
__device__ __forceinline__ void complete_additions() {
  bulk_wait();
  // Orders the writes of the bulk copy before the counter's write.
  asm volatile("fence.proxy.async.global;" ::: "memory");
  asm volatile("fence.acq_rel.gpu;" ::: "memory");
}
__device__ __forceinline__ void set_turn(uint32* counter, uint32 turn) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(counter), "r"(turn) : "memory");
}

// Completes this thread's additions, then lets the next thread add.
__device__ __forceinline__ void end_turn(uint32* counter, uint32 turn) {
  complete_additions();
  set_turn(counter, turn + 1);
}

// The dq warpgroup of the persistent form. It stages a pass in shared memory and continues. A reducer thread adds the
// pass to the sums.
template <class Config>
class BackwardQueryWarpgroup {
 public:
  using Shape = BackwardShape<Config>;

  __device__ __forceinline__ BackwardQueryWarpgroup(Sm90BackwardStorage<Config>& smem, const Sm90BackwardArgs& args)
      : smem_(smem), args_(args) {}

  __device__ __forceinline__ void run() {
    const BackwardBand band = BackwardBand::of<Config>(args_.options);
    const auto lists = backward_row_lists<Config>(args_);
#pragma unroll 1
    for (uint32 number = 0;; ++number) {
      const Sm90BackwardItem& item = wait_for_item(smem_, number);
      if (uniform(item.is_end())) break;
      // If a tile has as many passes as there are staging buffers, each reducer adds only to sums that it has written
      // itself. Otherwise all passes must be complete before other reducers add to the same sums.
      if constexpr (Config::kOwnsHeads && Shape::kPasses != Config::kStagingBuffers) wait_for_passes();
      smem_.k_full.wait(number & 1);  // wait until k has arrived
      const int end = uniform(item.end);
      int step = uniform(item.begin);
      if (step == end) arrive_as_warp(smem_.k_empty);
#pragma unroll 1
      while (step < end) {
        const BackwardSegment segment = BackwardSegment::at(item, step).as_uniform();
        step = segment.step_end;
        float* const first = args_.dq_sums + (Config::kOwnsHeads ? int64{blockIdx.x} * args_.stats_rows
                                                                 : backward_stats_row(args_, item, segment.head, 0)) *
                                                 Shape::kDepth;
        // If the rows of the first tile see no key of the second computing warpgroup, that warpgroup skips the tile.
        int row_tile = lists.number(segment.tile);
        bool is_half = kSkipsTiles<Config> && uniform(item.is_above_band(band, segment.tile, 1));
#pragma unroll 1
        for (int tile = segment.tile; tile < segment.tile_end; ++tile) {
          const int number_of_tile = row_tile;
          float* const to = first + int64{row_tile} * (kBackwardRows * Shape::kDepth);
          const bool is_last = tile + 1 == segment.tile_end;
          row_tile = lists.number(is_last ? tile : tile + 1);  // loaded while the current tile is computed
          const uint32 turn = blocks_before<Config>(args_, item, band, tile);
          uint32 next_turn = 0;
          if constexpr (Config::kIsDeterministic) {
            // Each reducer also reads the counter of the next query tile. With a block mask it does not, because the
            // next tile in the list may be any tile.
            const bool looks_ahead = !is_last && !has_block_mask<Config>();
            next_turn = looks_ahead ? blocks_before<Config>(args_, item, band, tile + 1) : kNoTurn;
          }
          if constexpr (has_captured_gradients<Config>()) add_captured(item, segment.head, number_of_tile, is_half);
          if constexpr (Config::kOwnsHeads) {
            compute_own_tile(item, band, tile, to, is_half, is_last && step == end);
          } else {
            compute_tile({to, turn, next_turn}, is_half, is_last && step == end);
          }
          is_half = false;
        }
      }
      if constexpr (Config::kOwnsHeads) complete_passes();
      release_item(smem_, number);
    }
    stop_reducers();
  }

 private:
  // Adds the tile's ds to the gradients of captured tensors, before the dq product is issued. is_half is set if the
  // second warpgroup has skipped the tile.
  __device__ __forceinline__ void add_captured(const Sm90BackwardItem& item, int head, int row_tile, bool is_half) {
    const uint32 buffer = number_ % Config::kDsBuffers;
#pragma unroll
    for (int w = 0; w < Shape::kWarpgroups; ++w) {
      smem_.ds_full[buffer][w].wait(number_ / Config::kDsBuffers & 1);  // wait until that warpgroup has stored ds
    }
    const int keys = is_half ? Config::kBlockN / Shape::kWarpgroups : Config::kBlockN;
    BackwardCaptureSums<Config>::add(args_, item, head, row_tile, smem_.ds[buffer][0], keys);
  }

  __device__ __forceinline__ void compute_tile(const BackwardTarget& to, bool is_half, bool is_last) {
    const uint32 buffer = number_ % Config::kDsBuffers;
    const auto wait_ds = [&](int warpgroup) {
      // Wait until that warpgroup has stored ds.
      smem_.ds_full[buffer][warpgroup].wait(number_ / Config::kDsBuffers & 1);
    };
#pragma unroll
    for (int pass = 0; pass < Shape::kPasses; ++pass) {
      float acc[32];
      // Each branch has separate products and a separate wait, because ptxas serialises products if there is a branch
      // among them.
      if (is_half) {
        begin_ds_k(acc, smem_, buffer, pass, 1, wait_ds);
        wgmma_wait<0>(acc);
        if (pass == 0) wait_ds(1);
      } else {
        begin_ds_k(acc, smem_, buffer, pass, Shape::kWarpgroups, wait_ds);
        wgmma_wait<0>(acc);
      }
      if (pass + 1 == Shape::kPasses) {
        arrive_as_warp(smem_.ds_empty[buffer]);
        if (is_last) arrive_as_warp(smem_.k_empty);
      }
      wait_for_staging();
      stage_accumulator(acc, smem_.dq[staging()] + warp_part_of_pass<Config>(warp_));
      hand_over({to.sums + pass * Shape::kPassFloats, to.turn, to.next_turn});
    }
    ++number_;
  }

  // Computes dq of a tile if kOwnsHeads is set. The first key block that the tile sees starts the sums, and the last
  // one rounds them.
  __device__ __forceinline__ void compute_own_tile(const Sm90BackwardItem& item, const BackwardBand& band, int tile,
                                                   float* sums, bool is_half, bool is_last) {
    const auto seen = BackwardKeyBlocks::of<Config>(item, band, tile);
    const int block = item.key / Config::kBlockN;
    if (block < seen.last) {
      compute_tile({sums, block == seen.first ? kStoresPass : kAddsPass, 0}, is_half, is_last);
    } else {
      finish_tile(item, tile, block == seen.first ? nullptr : sums, is_half, is_last);
    }
  }

  // Computes and rounds dq of a tile to which no later key block adds. `sums` holds the sum over earlier key blocks, or
  // is null if there are none.
  __device__ __forceinline__ void finish_tile(const Sm90BackwardItem& item, int tile, const float* sums, bool is_half,
                                              bool is_last) {
    const uint32 buffer = number_ % Config::kDsBuffers;
    const auto wait_ds = [&](int warpgroup) {
      // Wait until that warpgroup has stored ds.
      smem_.ds_full[buffer][warpgroup].wait(number_ / Config::kDsBuffers & 1);
    };
    wait_for_passes();  // wait until the passes of earlier key blocks are in memory
    const BackwardOwnRows<Config> rows = {args_, item, tile * kBackwardRows + warp_ * 16};
#pragma unroll
    for (int pass = 0; pass < Shape::kPasses; ++pass) {
      float acc[32];
      load_own_sums(acc,
                    sums == nullptr ? nullptr : sums + pass * Shape::kPassFloats + warp_part_of_pass<Config>(warp_));
      if (is_half) {
        begin_ds_k<Config, true>(acc, smem_, buffer, pass, 1, wait_ds);
        wgmma_wait<0>(acc);
        if (pass == 0) wait_ds(1);
      } else {
        begin_ds_k<Config, true>(acc, smem_, buffer, pass, Shape::kWarpgroups, wait_ds);
        wgmma_wait<0>(acc);
      }
      if (pass + 1 == Shape::kPasses) {
        arrive_as_warp(smem_.ds_empty[buffer]);
        if (is_last) arrive_as_warp(smem_.k_empty);
      }
      if (pass == 0) rows.template store<0>(acc);
      if (pass == 1) rows.template store<1>(acc);
    }
    ++number_;
  }

  // Waits until the bulk copies have read all staged passes. Passes that precede the last complete_passes() are then in
  // memory.
  __device__ __forceinline__ void wait_for_passes() {
    for (uint32 i = 0; i < Config::kStagingBuffers; ++i) {
      const uint32 next = pass_number_ + i;
      smem_.dq_empty[next % Config::kStagingBuffers].wait(next / Config::kStagingBuffers & 1 ^ 1);
    }
  }
  // Makes the reducers complete all passes of a key block. Afterwards the next key block may read these sums, and
  // another head may overwrite them.
  __device__ __forceinline__ void complete_passes() {
    fence_sums_for_async();
    for (int i = 0; i < Config::kStagingBuffers; ++i) {
      wait_for_staging();
      hand_over({args_.dq_sums, kCompletesPasses, 0});
    }
  }

  [[nodiscard]] __device__ __forceinline__ uint32 staging() const {
    return pass_number_ % Config::kStagingBuffers;
  }
  // Waits until the bulk copy has read the previous pass from this staging buffer. Afterwards the buffer may be
  // overwritten.
  __device__ __forceinline__ void wait_for_staging() {
    smem_.dq_empty[staging()].wait(pass_number_ / Config::kStagingBuffers & 1 ^ 1);
  }

  // Hands the staged pass to its reducer, which also issues the fence before the bulk copy. The reducer could compute
  // the target itself. But without the store of the target, this warpgroup would issue its next products at once,
  // together with those of other warpgroups, which makes the kernel 5 % slower. If the store precedes the staging of
  // the sums, the kernel is 1 to 2 % slower.
  __device__ __forceinline__ void hand_over(const BackwardTarget& target) {
    if (threadIdx.x == 0) smem_.dq_target[staging()] = target;
    __syncwarp();
    arrive_as_warp(smem_.dq_full[staging()]);
    ++pass_number_;
  }

  __device__ __forceinline__ void stop_reducers() {
    for (int i = 0; i < Config::kStagingBuffers; ++i) {
      wait_for_staging();
      hand_over({});
    }
  }

  Sm90BackwardStorage<Config>& smem_;
  const Sm90BackwardArgs& args_;
  int warp_ = uniform(static_cast<int>(threadIdx.x) / 32);
  uint32 number_ = 0;       // number of the current query tile, counted through all items; it determines the buffer of
                            // ds and the parity
  uint32 pass_number_ = 0;  // number of the current pass, counted through all tiles; it determines the staging buffer
                            // and the parity
};

// Returns the counter that orders the additions of a pass. Each tile has kBackwardTurns counters, and a counter without
// a pass stays 0.
template <class Config>
[[nodiscard]] __device__ __forceinline__ uint32* turn_counter(const Sm90BackwardArgs& args,
                                                              const BackwardTarget& target) {
  using Shape = BackwardShape<Config>;
  static_assert(Shape::kPasses <= kBackwardTurns);
  const int64 pass = (target.sums - args.dq_sums) / Shape::kPassFloats;  // number of the pass, counted through all
                                                                         // tiles
  return args.dq_turns + pass / Shape::kPasses * kBackwardTurns + pass % Shape::kPasses;
}

// Adds the passes of one staging buffer to the sums in memory. One thread per staging buffer runs this function. The
// end of a turn and the wait for the next turn each take at least one round trip to the L2 cache. Both overlap with the
// computation of the next tile.
template <class Config>
__device__ __forceinline__ void reduce_dq(Sm90BackwardStorage<Config>& smem, const Sm90BackwardArgs& args, int buffer) {
  using Shape = BackwardShape<Config>;
  // The buffer's next pass is the same pass of the next tile only if both counts are equal.
  constexpr bool kLooksAhead = Shape::kPasses == Config::kStagingBuffers;
  bool has_turn = !Config::kIsDeterministic;
#pragma unroll 1
  for (uint32 parity = 0;; parity ^= 1) {
    smem.dq_full[buffer].wait(parity);
    const BackwardTarget target = smem.dq_target[buffer];
    if (target.sums == nullptr) break;
    fence_smem_for_async();  // on behalf of the warps that stored the pass, which have arrived at dq_full
    uint32* const counter = turn_counter<Config>(args, target);
    if (!has_turn) wait_turn(counter, target.turn);
    if (!Config::kOwnsHeads || target.turn == kAddsPass) {
      bulk_add(target.sums, smem.dq[buffer], Shape::kPassBytes);
    } else if (target.turn == kStoresPass) {
      bulk_store(target.sums, smem.dq[buffer], Shape::kPassBytes);
    } else {
      bulk_wait();
      fence_sums_for_async();  // the dq warpgroup reads the sums with ordinary loads
    }
    bulk_commit();
    bulk_wait_read();
    smem.dq_empty[buffer].arrive();
    if constexpr (Config::kIsDeterministic) {
      uint32* const next = counter + kBackwardTurns;  // counter for the same pass of the next tile
      has_turn = kLooksAhead && target.next_turn != kNoTurn;
      const uint32 seen = has_turn ? peek_turn(next) : 0;
      end_turn(counter, target.turn);
      if (has_turn && seen != target.next_turn) wait_turn(next, target.next_turn);
    }
  }
  bulk_wait();
}

}  // namespace attend
