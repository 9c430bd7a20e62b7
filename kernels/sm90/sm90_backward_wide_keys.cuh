// sm90, backward beyond 128 columns: dk and dv. sm90_backward.cuh has the equations; dq is made by
// sm90_backward_wide_queries.cuh.
//
// Shapes   as in sm90_backward.cuh, head dimensions to 256, one of them above 128; args: Sm90BackwardArgs
// Supports float16, bfloat16; full, causal, window masks; ALiBi; dropout; packed sequences; grouped heads; any lengths.
//          Strides and addresses multiples of 16 bytes, none of them 0. sm_90a
// Work     A block has 64 keys and walks over the tiles of 64 query rows that see them, for all query heads of the
//          group: dk and dv stay in registers. Four products a tile; nothing is added up in memory, so that the same
//          inputs give the same bits
// Roles    warpgroup 0: one warp loads k and q, one v and dout. Warpgroup 1: s, p and dv. Warpgroup 2: dp, ds and dk,
//          with p from warpgroup 1. 256 columns of dk and dv of 64 keys are 256 registers a thread of one warpgroup:
//          so each has one of them
// Limits   NaN or inf in a row of dout, q, k or v can reach what shares a tile with it; lengths below 2^30
// Source   Dao, FlashAttention-2 (2023), Algorithm 2; docs/hopper_backward.md
#pragma once

#include "../common/fast_dropout.cuh"
#include "../common/online_softmax.cuh"
#include "../common/setmaxnreg.cuh"
#include "sm90_backward_load.cuh"
#include "sm90_backward_products.cuh"
#include "sm90_backward_scores.cuh"
#include "sm90_backward_store.cuh"
#include "sm90_backward_wide_storage.cuh"

namespace attend {

// What both computing warpgroups of a key block have: descriptors, rings, and how a gradient gets to memory.
template <class Config>
class WideKeysWarpgroup {
 public:
  using Shape = BackwardShape<Config>;
  using Element = ElementOf<Config>;
  using Storage = Sm90BackwardWideKeysStorage<Config>;

 protected:
  static constexpr int kStages = Config::kStages;
  static constexpr int kHandovers = kBackwardWideHandovers;

  __device__ __forceinline__ WideKeysWarpgroup(Storage& smem, const Sm90BackwardArgs& args)
      : smem_(smem), args_(args) {}

  [[nodiscard]] static __device__ __forceinline__ uint32 stage(uint32 number) { return stage_of<kStages>(number); }
  __device__ __forceinline__ void wait(Mbarrier (&ring)[kStages], uint32 number) {
    ring[stage(number)].wait(parity_of<kStages>(number));
  }
  [[nodiscard]] static __device__ __forceinline__ MatrixDescriptor along_rows(const Bits16* tile) {
    return MatrixDescriptor::along_rows(smem_address(tile));
  }
  [[nodiscard]] static __device__ __forceinline__ MatrixDescriptor down_columns(const Bits16* tile) {
    return MatrixDescriptor::down_columns(smem_address(tile), Shape::kPanelBytesM);
  }

  template <int kHeadDim, int kCount>
  __device__ __forceinline__ void store(const float (&x)[kCount], float factor, void* tensor,
                                        const TensorStrides& stride) const {
    const Sm90BackwardItem& item = smem_.item;
    const int row = item.key + static_cast<int>(threadIdx.x % kWarpgroup) / 32 * 16;
    store_accumulator<Element, kHeadDim>(
        x, factor, static_cast<Bits16*>(tensor) + stride.offset(item.batch, item.head_k, item.k_begin + row),
        stride.row, item.seqlen_k - row);
  }

  Storage& smem_;
  const Sm90BackwardArgs& args_;
};

// Warpgroup 1. Tile i; | its products are drained:
//   1  issue dv(i - 1) and s(i)
//   2  | p(i) = exp2(s), handed over as floats and packed for dv
// While it is in 2 the tensor cores have products of warpgroup 2, and the other way round. dv goes first: then dout is
// free early.
template <class Config>
class WideValueWarpgroup : WideKeysWarpgroup<Config> {
 public:
  using Base = WideKeysWarpgroup<Config>;
  using typename Base::Element;
  using typename Base::Shape;
  using typename Base::Storage;
  using Alibi = BackwardAlibi<Config>;

  __device__ __forceinline__ WideValueWarpgroup(Storage& smem, const Sm90BackwardArgs& args) : Base(smem, args) {}

  __device__ __forceinline__ void run() {
#pragma unroll
    for (float& x : dv_) x = 0.0f;
    const auto end = static_cast<uint32>(uniform(smem_.item.end));
    if (end > 0) compute(end);
    const float unit = sm90_backward_unit(sm90_backward_units(Config::kElement).p_bits);
    Base::template store<Config::kHeadDimV>(dv_, Config::kHasDropout ? unit * args_.options.dropout_scale : unit,
                                            args_.base.dv, args_.base.dv_stride);
  }

 private:
  using Base::args_;
  using Base::smem_;
  using Base::stage;

  __device__ __forceinline__ void compute(uint32 end) {
    smem_.k_full.wait(0);  // k has landed
    begin_tile(0);
    wgmma_fence();
    begin_scores<Config, Config::kHeadDim, false>(s_, Base::along_rows(smem_.k), Base::along_rows(smem_.q[stage(0)]));
    wgmma_wait<0>(s_);
    end_tile(0);
#pragma unroll 1
    for (uint32 number = 1; number < end; ++number) {
      Base::wait(smem_.dout_full, number - 1);  // dout of the tile before has landed
      wgmma_fence();
      begin_gradient<Config, Shape::kDepthV>(dv_, p_, Base::down_columns(smem_.dout[stage(number - 1)]));
      begin_tile(number);
      wgmma_fence();
      begin_scores<Config, Config::kHeadDim, false>(s_, Base::along_rows(smem_.k),
                                                    Base::along_rows(smem_.q[stage(number)]));
      wgmma_wait<1>(dv_);
      arrive_as_warp(smem_.dout_empty[stage(number - 1)]);
      wgmma_wait<0>(s_);
      end_tile(number);
    }
    Base::wait(smem_.dout_full, end - 1);  // the last dout has landed
    wgmma_fence();
    begin_gradient<Config, Shape::kDepthV>(dv_, p_, Base::down_columns(smem_.dout[stage(end - 1)]));
    wgmma_wait<0>(dv_);
  }

  __device__ __forceinline__ void begin_tile(uint32 number) {
    if (number == head_end_) begin_head(number);
    Base::wait(smem_.q_full, number);  // q and lse of the tile have landed
    read_row_statistics(lse_, smem_.lse_log2[stage(number)]);
    if constexpr (Alibi::kIsOn && Alibi::kIsLinear) alibi_of(number).add_to_rows(lse_);
  }

  // Tile `number` is the first of a query head.
  __device__ __forceinline__ void begin_head(uint32 number) {
    const Sm90BackwardItem& item = smem_.item;
    const auto segment =
        BackwardSegment::at(item, static_cast<int>(number), args_.base.num_heads_q / args_.base.num_heads_k)
            .as_uniform();
    rules_ = rules_of_head<Config>(args_, item, segment.head);
    head_end_ = static_cast<uint32>(segment.step_end);
    first_tile_ = uniform(segment.tile - static_cast<int>(number));
    masked_ = MaskedTiles::of<Config>(args_, item, item.key, segment.tile, number, head_end_);
  }

  // s of the tile is done: p, as floats to the other warpgroup and packed.
  __device__ __forceinline__ void end_tile(uint32 number) {
    arrive_as_warp(smem_.q_empty[stage(number)]);
    exponentials(number);
#pragma unroll
    for (int i = 0; i < 16; ++i) p_[i] = Element::pack(s_[2 * i], s_[2 * i + 1]);
    if constexpr (Config::kHasDropout) drop(number);
    pin_registers(p_);
    hand_over(number);
  }

  // s becomes p; entries that are not seen become 0, whatever stood there.
  __device__ __forceinline__ void exponentials(uint32 number) {
    const int tile = tile_of_rows(number);
    if (masked_.has<Config>(number)) {
      const float unseen = -kInfinity * args_.scale_log2;  // of the sign that makes p 0; scale_log2 is not 0
      mask_scores<Config>(s_, smem_.item, BackwardBand::of<Config>(args_.options), tile, smem_.item.key, unseen);
    }
    Alibi alibi = {rules_.slope, 0.0f};
    if constexpr (Alibi::kIsOn && !Alibi::kIsLinear) alibi = alibi_of(number);
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      s_[i] = exp2_fast(alibi.exponent(i, s_[i], args_.scale_log2, lse_[backward_statistic(i)]));
    }
  }
  [[nodiscard]] __device__ __forceinline__ Alibi alibi_of(uint32 number) const {
    return Alibi::of(rules_.slope, smem_.item, tile_of_rows(number), smem_.item.key, thread());
  }

  // What dropout does not keep becomes 0 in p_, and negative for the other warpgroup, which wants both p and decision.
  __device__ __forceinline__ void drop(uint32 number) {
    uint32 kept[kKeptWords<32>];
    kept_bits<32, true>(rules_.tile(int64{tile_of_rows(number)} * kBackwardRows, smem_.item.key), kept, thread());
    drop_pairs<32>(p_, kept);
#pragma unroll
    for (int i = 0; i < 32; ++i) s_[i] = (kept[0] >> i & 1u) != 0 ? s_[i] : -s_[i];
  }

  __device__ __forceinline__ void hand_over(uint32 number) {
    const uint32 buffer = stage_of<Base::kHandovers>(number);
    smem_.p_empty[buffer].wait(parity_of<Base::kHandovers>(number) ^ 1);  // p of two tiles before has been read
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      smem_.p[buffer][i][thread()] = make_float4(s_[4 * i], s_[4 * i + 1], s_[4 * i + 2], s_[4 * i + 3]);
    }
    __syncwarp();
    arrive_as_warp(smem_.p_full[buffer]);
  }

  [[nodiscard]] static __device__ __forceinline__ int thread() {
    return static_cast<int>(threadIdx.x % kWarpgroup);
  }
  [[nodiscard]] __device__ __forceinline__ int tile_of_rows(uint32 number) const {
    return first_tile_ + static_cast<int>(number);
  }

  uint32 head_end_ = 0;  // number of the tile behind the query head's last
  int first_tile_ = 0;   // number 0 would be this tile of the head's rows
  MaskedTiles masked_ = {};
  ScoreRules<Config> rules_ = {};  // of the head; what no option needs takes no registers
  float dv_[Shape::kDepthV / 2];
  float s_[32];  // s, then p
  uint32 p_[16];
  float lse_[16];
};

// Warpgroup 2. Tile i; | its products are drained:
//   1  issue dk(i - 1) and dp(i)
//   2  | ds(i) = p (dp - delta)
template <class Config>
class WideKeyWarpgroup : WideKeysWarpgroup<Config> {
 public:
  using Base = WideKeysWarpgroup<Config>;
  using typename Base::Element;
  using typename Base::Shape;
  using typename Base::Storage;

  __device__ __forceinline__ WideKeyWarpgroup(Storage& smem, const Sm90BackwardArgs& args) : Base(smem, args) {}

  __device__ __forceinline__ void run() {
#pragma unroll
    for (float& x : dk_) x = 0.0f;
    const auto end = static_cast<uint32>(uniform(smem_.item.end));
    if (end > 0) compute(end);
    Base::template store<Config::kHeadDim>(dk_, args_.base.gradient_scale, args_.base.dk, args_.base.dk_stride);
  }

 private:
  using Base::args_;
  using Base::smem_;
  using Base::stage;

  __device__ __forceinline__ void compute(uint32 end) {
    smem_.v_full.wait(0);  // v has landed
    begin_tile(0);
    wgmma_fence();
    begin_scores<Config, Config::kHeadDimV, false>(dp_, Base::along_rows(smem_.v),
                                                   Base::along_rows(smem_.dout[stage(0)]));
    wgmma_wait<0>(dp_);
    end_tile(0);
#pragma unroll 1
    for (uint32 number = 1; number < end; ++number) {
      Base::wait(smem_.q_full, number - 1);  // q of the tile before has landed
      wgmma_fence();
      begin_gradient<Config, Shape::kDepth>(dk_, ds_, Base::down_columns(smem_.q[stage(number - 1)]));
      begin_tile(number);
      wgmma_fence();
      begin_scores<Config, Config::kHeadDimV, false>(dp_, Base::along_rows(smem_.v),
                                                     Base::along_rows(smem_.dout[stage(number)]));
      wgmma_wait<1>(dk_);
      arrive_as_warp(smem_.q_empty[stage(number - 1)]);
      wgmma_wait<0>(dp_);
      end_tile(number);
    }
    Base::wait(smem_.q_full, end - 1);  // the last q has landed
    wgmma_fence();
    begin_gradient<Config, Shape::kDepth>(dk_, ds_, Base::down_columns(smem_.q[stage(end - 1)]));
    wgmma_wait<0>(dk_);
  }

  __device__ __forceinline__ void begin_tile(uint32 number) {
    Base::wait(smem_.dout_full, number);  // dout and delta of the tile have landed
    read_row_statistics(delta_, smem_.delta[stage(number)]);
#pragma unroll
    for (float& x : delta_) x *= kScoreGradientUnit<Config>;
  }

  // dp of the tile is done: ds, of the p that the other warpgroup leaves.
  __device__ __forceinline__ void end_tile(uint32 number) {
    arrive_as_warp(smem_.dout_empty[stage(number)]);
    const uint32 buffer = stage_of<Base::kHandovers>(number);
    smem_.p_full[buffer].wait(parity_of<Base::kHandovers>(number));  // p of the tile is there
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float4 p = smem_.p[buffer][i][threadIdx.x % kWarpgroup];
      ds_[2 * i] = Element::pack(score_gradient(p.x, 4 * i), score_gradient(p.y, 4 * i + 1));
      ds_[2 * i + 1] = Element::pack(score_gradient(p.z, 4 * i + 2), score_gradient(p.w, 4 * i + 3));
    }
    pin_registers(ds_);
    __syncwarp();
    arrive_as_warp(smem_.p_empty[buffer]);
  }

  // p: negative where dropout does not keep it.
  [[nodiscard]] __device__ __forceinline__ float score_gradient(float p, int i) const {
    const float dp = Config::kHasDropout && p < 0.0f ? 0.0f : dp_[i];
    return wide_score_gradient<Config>(Config::kHasDropout ? fabsf(p) : p, dp, delta_[backward_statistic(i)]);
  }

  float dk_[Shape::kDepth / 2];
  float dp_[32];
  uint32 ds_[16];
  float delta_[16];
};

// By one warp: k and the tiles of q, or v and those of dout, into buffers as they become free.
template <class Config, bool kIsQ>
__device__ __forceinline__ void load_wide_keys(Sm90BackwardWideKeysStorage<Config>& smem,
                                               const Sm90BackwardArgs& args) {
  using Storage = Sm90BackwardWideKeysStorage<Config>;
  const Sm90BackwardItem& item = smem.item;
  if (item.begin == item.end) return;
  const uint32 group = args.base.num_heads_q / args.base.num_heads_k;
  BackwardLoads<Config, Storage> loads(smem, args, smem.tail_full[kIsQ ? 0 : 1]);
  BackwardSegment at = BackwardSegment::at(item, 0, group);
  if constexpr (kIsQ) {
    loads.load_k(item);
  } else {
    loads.load_v(item);
  }
#pragma unroll 1
  for (int step = 0; step < item.end; ++step) {
    const uint32 stage = stage_of<Config::kStages>(step);
    const uint32 parity = parity_of<Config::kStages>(step) ^ 1;
    if constexpr (kIsQ) {
      smem.q_empty[stage].wait(parity);  // s and dk of the tile before have read it
      loads.load_q(item, at.head, at.tile, stage);
    } else {
      smem.dout_empty[stage].wait(parity);  // dp and dv of the tile before have read it
      loads.load_dout(item, at.head, at.tile, stage);
    }
    if (++at.tile == at.tile_end && step + 1 < item.end) at = BackwardSegment::at(item, step + 1, group);
  }
}

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
    WideValueWarpgroup<Config>(smem, args).run();
  } else {
    take_registers<Config::kComputeRegisters>();
    WideKeyWarpgroup<Config>(smem, args).run();
  }
}

}  // namespace attend
