// Computes dq in the wide backward pass on sm90. It is used if a head dimension is above 128 or if the score
// modifications need the wide form (sm90_backward_tile()). sm90_backward.cuh has the equations.
// sm90_backward_wide_keys.cuh computes dk and dv, and its header states the supported options and the limits.
//
// Work     A thread block has 128 query rows of a head and iterates over the tiles of 64 keys that these rows see. dq
//          stays in registers. s and dp are computed a second time, so the complete backward pass has seven products
//          instead of five. In return, no dq is summed in memory. With key blocks of only 64 keys, such additions would
//          exceed the bandwidth of the L2 cache.
// Roles    In warpgroup 0, one warp loads q and k, one warp loads dout and v, and one thread loads the bias. Warpgroups
//          1 and 2 have 64 query rows each and compute p, ds and dq of these rows.
// Source   Dao, FlashAttention-2 (2023), Algorithm 2; docs/hopper_backward.md
#pragma once

#include "../isa/setmaxnreg.cuh"
#include "sm90_backward_dterms.cuh"
#include "sm90_backward_products.cuh"
#include "sm90_backward_store.cuh"
#include "sm90_backward_wide_queries_load.cuh"
#include "sm90_backward_wide_queries_scores.cuh"
#include "sm90_backward_wide_storage.cuh"

namespace attend {

// A computing warpgroup. It executes these steps for key tile i:
//   1  Issue dq(i - 1), s(i) and dp(i).
//   2  When s(i) has completed, compute p(i) = exp2(s), while dp(i) runs.
//   3  When dp(i) has completed, compute and pack ds(i) = p (dp - delta).
// dq is issued first, so that k of the previous tile is released early. While one warpgroup executes step 3, the tensor
// cores run the products of the other warpgroup.
template <class Config>
class WideQueryWarpgroup {
 public:
  using Shape = BackwardShape<Config>;
  using Element = ElementOf<Config>;
  using Storage = Sm90BackwardWideQueriesStorage<Config>;

  __device__ __forceinline__ WideQueryWarpgroup(Storage& smem, const Sm90BackwardArgs& args, int warpgroup)
      : rows_(smem, args, warpgroup), dterms_(smem, args, warpgroup) {}

  __device__ __forceinline__ void run() {
#pragma unroll
    for (float& x : dq_) x = 0.0f;
    const uint32 end = rows_.begin();
    if (end > 0) compute(end);
    skip_tiles(end);
    store();
    if constexpr (Config::kDtermsBlocks > 0) dterms_.store_zeros(end);
  }

 private:
  // Whether dq must complete before s and dp are issued. In these configurations there are not enough registers to keep
  // ds as an operand of dq meanwhile.
  static constexpr bool kDrainsDq =
      (Shape::kDepth == 256 && (Score<Config>::kDrops || Config::kMask == MaskKind::kWindow ||
                                (Score<Config>::kTransforms && Config::kMask == MaskKind::kFull))) ||
      (Shape::kDepth == 192 && Score<Config>::kDrops && Config::kDtermsBlocks > 1);

  // With up to 128 columns, registers can hold q and dout in addition to the results of the products.
  static constexpr bool kHoldsQ = Shape::kDepth <= 128;
  static constexpr bool kHoldsDout =
      kHoldsQ && Shape::kDepth + Shape::kDepthV <= (Config::kDtermsBlocks > 0 ? 192 : 256);
  // q and dout as A operands in registers. If they were members of this class, the compiler would no longer place the
  // object in registers.
  struct Held {
    uint32 q[kHoldsQ ? Shape::kDepth / 4 : 1];
    uint32 dout[kHoldsDout ? Shape::kDepthV / 4 : 1];
  };

  // Computes key tiles 0 to end - 1. There is at least one.
  __device__ __forceinline__ void compute(uint32 end) {
    smem().q_full.wait(0);  // wait until q has arrived
    Held held;
    if constexpr (kHoldsQ) hold_rows(held.q, part(smem().q, 0), thread());
    rows_.decide(0);
    smem().k_ring().wait(0);  // wait until k has arrived
    wgmma_fence();
    begin_s(held, 0);
    smem().dout_full.wait(0);  // wait until dout has arrived
    if constexpr (kHoldsDout) hold_rows(held.dout, part(smem().dout, 0), thread());
    smem().v_ring().wait(0);  // wait until v has arrived
    wgmma_fence();
    begin_dp(held, 0);
    end_tile(0);
#pragma unroll 1
    for (uint32 number = 1; number < end; ++number) {
      rows_.decide(number);
      wgmma_fence();
      begin_gradient<Config, Shape::kDepth>(dq_, ds_, down_columns(smem().k_ring().tile(number - 1)));
      if constexpr (kDrainsDq) wgmma_wait<0>(dq_);
      smem().k_ring().wait(number);
      wgmma_fence();
      begin_s(held, number);
      smem().v_ring().wait(number);
      wgmma_fence();
      begin_dp(held, number);
      if constexpr (Config::kDtermsBlocks > 0) dterms_.store(number - 1);
      wgmma_wait<2>(dq_);
      smem().k_ring().release(number - 1);
      end_tile(number);
    }
    wgmma_fence();
    begin_gradient<Config, Shape::kDepth>(dq_, ds_, down_columns(smem().k_ring().tile(end - 1)));
    if constexpr (Config::kDtermsBlocks > 0) dterms_.store(end - 1);
    wgmma_wait<0>(dq_);
    smem().k_ring().release(end - 1);
  }

  // Waits for the key tiles from `begin` on and releases them without using them. Only the other warpgroup needs these
  // tiles.
  __device__ __forceinline__ void skip_tiles(uint32 begin) {
    const auto all = static_cast<uint32>(uniform(smem().block.rows.tile_end - smem().block.rows.tile));
#pragma unroll 1
    for (uint32 number = begin; number < all; ++number) {
      smem().k_ring().wait(number);
      smem().v_ring().wait(number);
      smem().k_ring().release(number);
      smem().v_ring().release(number);
      if constexpr (Score<Config>::kAddsFromMemory) {
        // After this wait, all warps have read the previous bias tile of this buffer. Without the wait, the arrival
        // could count for that earlier tile, because the bias may have fewer buffers than v.
        const uint32 stage = stage_of<Storage::kStagesTerms>(number);
        smem().terms_full[stage].wait(parity_of<Storage::kStagesTerms>(number));
        arrive_as_warp(smem().terms_empty[stage]);
      }
    }
  }

  __device__ __forceinline__ void begin_s(const Held& held, uint32 number) {
    const MatrixDescriptor k = along_rows(smem().k_ring().tile(number));
    if constexpr (kHoldsQ) {
      begin_held_scores<Config, Config::kHeadDim>(s_, held.q, k);
    } else {
      begin_scores<Config, Config::kHeadDim>(s_, rows_of(smem().q, number), k);
    }
  }
  __device__ __forceinline__ void begin_dp(const Held& held, uint32 number) {
    const MatrixDescriptor v = along_rows(smem().v_ring().tile(number));
    if constexpr (kHoldsDout) {
      begin_held_scores<Config, Config::kHeadDimV>(dp_, held.dout, v);
    } else {
      begin_scores<Config, Config::kHeadDimV>(dp_, rows_of(smem().dout, number), v);
    }
  }

  // Computes ds of the tile from the products s and dp, which may still be running.
  __device__ __forceinline__ void end_tile(uint32 number) {
    wgmma_wait<1>(s_);
    rows_.probabilities(number, s_);
    pin_registers(s_);
    // v has arrived long before. This wait is only here because it contains a branch. Without a branch, ptxas moves the
    // exponentials behind wgmma_wait<0>.
    smem().v_ring().wait(number);
    wgmma_wait<0>(dp_);
    smem().v_ring().release(number);
    rows_.drop_gradients(dp_);
    if constexpr (Config::kDtermsBlocks > 0) dterms_.begin(number);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float4 ds = make_float4(score_gradient(4 * i), score_gradient(4 * i + 1), score_gradient(4 * i + 2),
                                    score_gradient(4 * i + 3));
      ds_[2 * i] = Element::pack(ds.x, ds.y);
      ds_[2 * i + 1] = Element::pack(ds.z, ds.w);
      if constexpr (Config::kDtermsBlocks > 0) dterms_.put(number, i, ds);
    }
    pin_registers(ds_);
  }

  [[nodiscard]] __device__ __forceinline__ float score_gradient(int i) const {
    return wide_score_gradient<Config>(s_[i], dp_[i], rows_.delta(i));
  }

  __device__ __forceinline__ void store() const {
    const BackwardRowBlock& block = smem().block;
    const BackwardArgs& base = rows_.args.base;
    const int row = block.rows.row + rows_.warpgroup * kWarpgroupRows + thread() / 32 * 16;
    auto* to = static_cast<Bits16*>(base.dq) + block.span.query_offset(base.dq_stride, block.head, row);
    store_accumulator<Element, Config::kHeadDim>(dq_, base.gradient_scale, to, base.dq_stride.row,
                                                 static_cast<int>(block.span.seqlen_q) - row);
  }

  // Returns the address of this warpgroup's rows of q or dout. The added offset is always 0, but the compiler cannot
  // prove that. This stops ptxas from keeping descriptors in registers from tile to tile.
  template <int kElements>
  [[nodiscard]] __device__ __forceinline__ uint32 part(const Bits16 (&parts)[Storage::kWarpgroups][kElements],
                                                       uint32 number) const {
    return smem_address(parts[rows_.warpgroup]) + (number >> 31) * kSwizzleAtom;
  }
  template <int kElements>
  [[nodiscard]] __device__ __forceinline__ MatrixDescriptor
  rows_of(const Bits16 (&parts)[Storage::kWarpgroups][kElements], uint32 number) const {
    return MatrixDescriptor::along_rows(part(parts, number));
  }
  [[nodiscard]] __device__ __forceinline__ Storage& smem() const {
    return rows_.smem;
  }

  // along_rows() and down_columns() return the descriptor of a key tile for a product that sums along its rows or down
  // its columns.
  [[nodiscard]] static __device__ __forceinline__ MatrixDescriptor along_rows(const Bits16* tile) {
    return MatrixDescriptor::along_rows(smem_address(tile));
  }
  [[nodiscard]] static __device__ __forceinline__ MatrixDescriptor down_columns(const Bits16* tile) {
    return MatrixDescriptor::down_columns(smem_address(tile), Shape::kPanelBytesN);
  }
  // Returns the index of the thread in its warpgroup. It is recomputed at each use, so that it occupies no register
  // between uses.
  [[nodiscard]] static __device__ __forceinline__ int thread() {
    return recomputed_thread() % kWarpgroup;
  }

  float dq_[Shape::kDepth / 2];
  float s_[32];  // s, and later p
  float dp_[32];
  uint32 ds_[16];
  WideQueryScores<Config> rows_;
  BackwardDterms<Config> dterms_;
};

// Computes dq. Grid: sm90_backward_wide_row_blocks(), with Config::kThreads threads per block.
template <class Config>
__device__ void sm90_backward_wide_queries(const Sm90BackwardArgs& args) {
  auto& smem = shared_storage<Sm90BackwardWideQueriesStorage<Config>, Config>();
  if (threadIdx.x == 0) {
    smem.init_barriers();
    smem.block = BackwardRowBlock::mine<Config>(args);
  }
  __syncthreads();  // the barriers are initialised and the block's rows are written, so all threads may use them
  // Wait until the other blocks of the cluster have initialised their barriers.
  if constexpr (Config::kDtermsBlocks > 1) cluster_barrier();
  if (smem.block.rows.count <= 0) return;
  const int warpgroup = static_cast<int>(__shfl_sync(0xffffffffu, threadIdx.x / kWarpgroup, 0));
  if (warpgroup == 0) {
    give_registers<Config::kLoadRegisters>();
    const int warp = static_cast<int>(__shfl_sync(0xffffffffu, threadIdx.x / 32, 0));
    if (warp == 0) load_wide_queries<Config, true>(smem, args);
    if (warp == 1) load_wide_queries<Config, false>(smem, args);
    if constexpr (Score<Config>::kAddsFromMemory) {
      if (threadIdx.x == 64) load_wide_query_terms(smem, args);
    }
  } else {
    take_registers<Config::kComputeRegisters>();
    WideQueryWarpgroup<Config>(smem, args, warpgroup - 1).run();
    // After this wait, no other block arrives at this block's barriers.
    if constexpr (Config::kDtermsBlocks > 1) cluster_barrier();
  }
}

}  // namespace attend
