// Computes dk and dv in the wide backward pass on sm90. It is used if a head dimension is above 128 or if the score
// modifications need the wide form (sm90_backward_tile()). sm90_backward.cuh has the equations, and
// sm90_backward_wide_queries.cuh computes dq.
//
// Shapes   as in sm90_backward.cuh, with head dimensions up to 256. The parameter struct is Sm90BackwardArgs.
// Supports float16 and bfloat16, full, causal and window masks, dropout, packed sequences, grouped heads and any
//          lengths. Also supports one of a position term (ALiBi), a transform (softcap), or a 16-bit bias (head
//          dimensions up to 192). Strides and addresses are multiples of 16 bytes, and no stride is 0. Requires sm_90a.
// Work     A thread block has 64 keys and iterates over the tiles of 64 query rows that see these keys, for all query
//          heads of the group. dk and dv stay in registers. Each tile needs four products. No sum is accumulated in
//          memory, so the same inputs give the same bits.
// Roles    One warp of warpgroup 0 loads k and q, and another loads v and dout. Warpgroup 1 computes s, p and dv.
//          Warpgroup 2 computes dp, ds and dk, and gets p from warpgroup 1. If one warpgroup had both dk and dv with
//          256 columns each, they would need 256 registers per thread. So each of the two warpgroups computes one of
//          these gradients.
// Limits   A NaN or inf in a row of dout, q, k or v can spread to other results of the same tile. Sequences are shorter
//          than 2^30.
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

// A computing warpgroup. It multiplies its keys with a tile of query rows, and turns the results (scores) into 16-bit
// pairs. Then it multiplies the pairs with another tile and adds the product to a gradient. The template parameter
// PairMaker defines these operands:
//
//   PairMaker  scores            pairs  gradient
//   WideP      s = k q^T         p      dv += p dout
//   WideDs     dp = v dout^T     ds     dk += ds q
//
// A warpgroup executes these steps for query tile i:
//   1  Issue gradient(i - 1) and scores(i).
//   2  When both products have completed, compute pairs(i).
// While one warpgroup executes step 2, the tensor cores run the products of the other warpgroup. The gradient product
// is issued first, so that its tile is released early.
template <class Config, class PairMaker>
class WideKeysWarpgroup {
 public:
  using Storage = Sm90BackwardWideKeysStorage<Config>;

  __device__ __forceinline__ WideKeysWarpgroup(Storage& smem, const Sm90BackwardArgs& args)
      : smem_(smem), maker_(smem, args) {
#pragma unroll
    for (float& x : gradient_) x = 0.0f;
  }

  // Processes all query tiles of the work item, then stores the gradient.
  __device__ __forceinline__ void run() {
    const auto end = static_cast<uint32>(uniform(smem_.item.end));
    if (end > 0) compute(end);
    store();
  }

 private:
  // With up to 128 columns, registers can hold the keys in addition to the gradient.
  static constexpr bool kHoldsKeys = PairMaker::kKeysDepth <= 128 && PairMaker::kGradientDepth <= 128;
  // The keys as A operands in registers. If they were a member of this class, the compiler would no longer place the
  // object in registers.
  using HeldKeys = uint32[kHoldsKeys ? PairMaker::kKeysDepth / 4 : 1];

  // Computes query tiles 0 to end - 1. There is at least one.
  __device__ __forceinline__ void compute(uint32 end) {
    maker_.keys_full().wait(0);  // wait until the keys have arrived
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
    tiles.wait(number);  // wait until the tile and the statistics of its rows have arrived
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
    tiles.wait(number);  // wait until the tile has arrived
    wgmma_fence();
    const uint32 tile = smem_address(tiles.tile(number));
    begin_gradient<Config, PairMaker::kGradientDepth>(
        gradient_, pairs_, MatrixDescriptor::down_columns(tile, BackwardShape<Config>::kPanelBytesM));
  }

  // Stores the gradient. Each warp stores its 16 keys.
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
  float scores_[32];                               // s or dp
  uint32 pairs_[16];                               // p or ds, packed
  PairMaker maker_;
};

// Computes dk and dv. Grid: sm90_backward_items(), with Config::kThreads threads per block.
template <class Config>
__device__ void sm90_backward_wide_keys(const Sm90BackwardArgs& args) {
  auto& smem = shared_storage<Sm90BackwardWideKeysStorage<Config>, Config>();
  if (threadIdx.x == 0) {
    smem.init_barriers();
    if (!make_item<Config>(smem.item, args, blockIdx.x)) smem.item.key = -1;
  }
  __syncthreads();  // the barriers are initialised and the item is written, so all threads may use them
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
