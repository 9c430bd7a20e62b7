// sm90, wide backward: dk and dv, if a head dimension is above 128, or scores have what sm90_backward_tile() says.
// sm90_backward.cuh has the equations; sm90_backward_wide_queries.cuh makes dq.
//
// Shapes   as in sm90_backward.cuh, head dimensions to 256; args: Sm90BackwardArgs
// Supports float16, bfloat16; full, causal, window masks; a term by position, a transform of scores, or a term of 16
//          bits from memory (to 192 columns), one of them at a time; dropping; packed sequences; grouped heads; any
//          lengths. Strides and addresses are multiples of 16 bytes, no stride is 0. sm_90a
// Work     A block has 64 keys and walks over the tiles of 64 query rows that see them, for all query heads of the
//          group. dk and dv stay in registers. A tile takes four products. Nothing is added up in memory, so that the
//          same inputs give the same bits
// Roles    warpgroup 0: one warp loads k and q, one loads v and dout. Warpgroup 1 computes s, p and dv; warpgroup 2
//          computes dp, ds and dk with p from warpgroup 1. For 64 keys, 256 columns of dk and dv would take 256
//          registers a thread of one warpgroup. So each of the two has one of them
// Limits   NaN or inf in a row of dout, q, k or v can reach what shares a tile with it; lengths below 2^30
// Source   Dao, FlashAttention-2 (2023), Algorithm 2; docs/hopper_backward.md
#pragma once

#include "../isa/setmaxnreg.cuh"
#include "sm90_backward_products.cuh"
#include "sm90_backward_store.cuh"
#include "sm90_backward_wide_ds.cuh"
#include "sm90_backward_wide_keys_load.cuh"
#include "sm90_backward_wide_p.cuh"
#include "sm90_backward_wide_storage.cuh"

namespace attend {

// A computing warpgroup. It multiplies its keys with the tiles of rows, makes pairs of 16 bits from the scores, and
// adds their product with other tiles to a gradient:
//
//   PairMaker  scores            pairs  gradient
//   WideP      s = k q^T         p      dv += p dout
//   WideDs     dp = v dout^T     ds     dk += ds q
//
// Tile i; | all products drained:
//   1  issue gradient(i - 1) and scores(i)
//   2  | pairs(i)
// While a warpgroup is in 2, the tensor cores have products of the other. The gradient is issued first, so that its
// tile is free early.
template <class Config, class PairMaker>
class WideKeysWarpgroup {
 public:
  using Storage = Sm90BackwardWideKeysStorage<Config>;

  __device__ __forceinline__ WideKeysWarpgroup(Storage& smem, const Sm90BackwardArgs& args)
      : smem_(smem), maker_(smem, args) {
#pragma unroll
    for (float& x : gradient_) x = 0.0f;
  }

  // All tiles of the item; then the gradient to memory.
  __device__ __forceinline__ void run() {
    const auto end = static_cast<uint32>(uniform(smem_.item.end));
    if (end > 0) compute(end);
    store();
  }

 private:
  // To 128 columns there are registers for the gradient and the keys.
  static constexpr bool kHoldsKeys = PairMaker::kKeysDepth <= 128 && PairMaker::kGradientDepth <= 128;
  // A operands. They are no member: the compiler would no longer take the larger object apart into registers.
  using HeldKeys = uint32[kHoldsKeys ? PairMaker::kKeysDepth / 4 : 1];

  // Tiles 0 to end, at least one.
  __device__ __forceinline__ void compute(uint32 end) {
    maker_.keys_full().wait(0);  // the keys have landed
    HeldKeys held;
    if constexpr (kHoldsKeys) hold_rows(held, smem_address(maker_.keys()), static_cast<int>(threadIdx.x % kWarpgroup));
    issue_scores(held, 0);
    make_pairs(0);
#pragma unroll 1
    for (uint32 number = 1; number < end; ++number) {
      issue_gradient(number - 1);
      issue_scores(held, number);
      wgmma_wait<1>(gradient_);
      maker_.gradient_tiles().release(number - 1);
      make_pairs(number);
    }
    issue_gradient(end - 1);
    wgmma_wait<0>(gradient_);
  }

  __device__ __forceinline__ void issue_scores(const HeldKeys& held, uint32 number) {
    const auto tiles = maker_.score_tiles();
    tiles.wait(number);  // the tile and its rows' statistics have landed
    maker_.read_rows(number);
    wgmma_fence();
    const auto tile = MatrixDescriptor::along_rows(smem_address(tiles.tile(number)));
    if constexpr (kHoldsKeys) {
      begin_held_scores<Config, PairMaker::kHeadDim>(scores_, held, tile);
    } else {
      begin_scores<Config, PairMaker::kHeadDim>(scores_, MatrixDescriptor::along_rows(smem_address(maker_.keys())),
                                                tile);
    }
  }
  __device__ __forceinline__ void make_pairs(uint32 number) {
    wgmma_wait<0>(scores_);
    maker_.score_tiles().release(number);
    maker_.make_pairs(number, scores_, pairs_);
    pin_registers(pairs_);
  }
  __device__ __forceinline__ void issue_gradient(uint32 number) {
    const auto tiles = maker_.gradient_tiles();
    tiles.wait(number);  // the tile has landed
    wgmma_fence();
    const uint32 tile = smem_address(tiles.tile(number));
    begin_gradient<Config, PairMaker::kGradientDepth>(
        gradient_, pairs_, MatrixDescriptor::down_columns(tile, BackwardShape<Config>::kPanelBytesM));
  }

  // A warp stores its 16 keys.
  __device__ __forceinline__ void store() const {
    const WideGradient to = maker_.gradient();
    const Sm90BackwardItem& item = smem_.item;
    const int row = item.key + static_cast<int>(threadIdx.x % kWarpgroup) / 32 * 16;
    store_accumulator<ElementOf<Config>, PairMaker::kGradientHeadDim>(
        gradient_, to.factor, static_cast<Bits16*>(to.tensor) + item.span().keys().offset(to.stride, item.head_k, row),
        to.stride.row, item.seqlen_k - row);
  }

  Storage& smem_;
  float gradient_[PairMaker::kGradientDepth / 2];  // dv or dk
  float scores_[32];                               // s, or dp
  uint32 pairs_[16];                               // p, or ds
  PairMaker maker_;
};

// Grid: sm90_backward_items(), Config::kThreads threads.
template <class Config>
__device__ void sm90_backward_wide_keys(const Sm90BackwardArgs& args) {
  auto& smem = shared_storage<Sm90BackwardWideKeysStorage<Config>, Config>();
  if (threadIdx.x == 0) {
    smem.init_barriers();
    if (!make_item<Config>(smem.item, args, blockIdx.x)) smem.item.key = -1;
  }
  __syncthreads();  // the barriers are initialised, the item is there
  if (smem.item.is_end()) return;
  const int warpgroup = static_cast<int>(__shfl_sync(0xffffffffu, threadIdx.x / kWarpgroup, 0));
  if (warpgroup == 0) {
    give_registers<Config::kLoadRegisters>();
    const int warp = static_cast<int>(__shfl_sync(0xffffffffu, threadIdx.x / 32, 0));
    if (warp == 0) load_wide_keys<Config, true>(smem, args);
    if (warp == 1) load_wide_keys<Config, false>(smem, args);
  } else if (warpgroup == 1) {
    take_registers<Config::kComputeRegisters>();
    WideKeysWarpgroup<Config, WideP<Config>>(smem, args).run();
  } else {
    take_registers<Config::kComputeRegisters>();
    WideKeysWarpgroup<Config, WideDs<Config>>(smem, args).run();
  }
}

}  // namespace attend
