// sm90, backward beyond 128 columns, or if scores are transformed or have terms from memory: dk and dv.
// sm90_backward.cuh has the equations; dq is made by sm90_backward_wide_queries.cuh.
//
// Shapes   as in sm90_backward.cuh, head dimensions to 256; args: Sm90BackwardArgs
// Supports float16, bfloat16; full, causal, window masks; ALiBi; softcap; a bias of 16 bits (to 192 columns); dropout;
//          packed sequences; grouped heads; any lengths. Not two of ALiBi, softcap and bias at once. Strides and
//          addresses multiples of 16 bytes, none of them 0. sm_90a
// Work     A block has 64 keys and walks over the tiles of 64 query rows that see them, for all query heads of the
//          group: dk and dv stay in registers. Four products a tile; nothing is added up in memory, so that the same
//          inputs give the same bits
// Roles    warpgroup 0: one warp loads k and q, one v and dout. Warpgroup 1: s, p and dv. Warpgroup 2: dp, ds and dk,
//          with p from warpgroup 1. 256 columns of dk and dv of 64 keys are 256 registers a thread of one warpgroup:
//          so each has one of them
// Limits   NaN or inf in a row of dout, q, k or v can reach what shares a tile with it; lengths below 2^30
// Source   Dao, FlashAttention-2 (2023), Algorithm 2; docs/hopper_backward.md
#pragma once

#include "../attention/online_softmax.cuh"
#include "../isa/setmaxnreg.cuh"
#include "fast_dropout.cuh"
#include "sm90_backward_load.cuh"
#include "sm90_backward_products.cuh"
#include "sm90_backward_scores.cuh"
#include "sm90_backward_store.cuh"
#include "sm90_backward_wide_scores.cuh"
#include "sm90_backward_wide_storage.cuh"

namespace attend {

// What both computing warpgroups of a key block do: products of the block's keys with tiles of rows, of which Derived
// makes pairs of p or ds, and the gradient that is their product with other tiles.
//   kHeadDim  columns that exist of the tiles for the scores: s of q, or dp of dout
//   kDepth    columns of the gradient: dv of dout, or dk of q
// Tile i; | all products drained:
//   1  issue gradient(i - 1) and scores(i)
//   2  | Derived's end_tile(): pairs(i)
// While a warpgroup is in 2 the tensor cores have products of the other. The gradient goes first: then its tile is free
// early.
template <class Config, class Derived, int kHeadDim, int kDepth>
class WideKeysWarpgroup {
 public:
  using Element = ElementOf<Config>;
  using Storage = Sm90BackwardWideKeysStorage<Config>;

 protected:
  static constexpr int kHandovers = kBackwardWideHandovers;

  __device__ __forceinline__ WideKeysWarpgroup(Storage& smem, const Sm90BackwardArgs& args) : smem_(smem), args_(args) {
#pragma unroll
    for (float& x : gradient_) x = 0.0f;
  }

  // All steps of the item. keys: of the block, landed when keys_full says so.
  template <class ScoreRing, class GradientRing>
  __device__ __forceinline__ void walk(const Bits16* keys, Mbarrier& keys_full, const ScoreRing& score_tiles,
                                       const GradientRing& gradient_tiles) {
    const auto end = static_cast<uint32>(uniform(smem_.item.end));
    if (end == 0) return;
    keys_full.wait(0);  // the keys have landed
    HeldKeys held;      // no member: the object's registers are at the limit of what the compiler takes apart
    if constexpr (kHoldsKeys) hold_rows(held, smem_address(keys), static_cast<int>(threadIdx.x % kWarpgroup));
    issue_scores(keys, held, score_tiles, 0);
    end_tile(score_tiles, 0);
#pragma unroll 1
    for (uint32 number = 1; number < end; ++number) {
      issue_gradient(gradient_tiles, number - 1);
      issue_scores(keys, held, score_tiles, number);
      wgmma_wait<1>(gradient_);
      gradient_tiles.release(number - 1);
      end_tile(score_tiles, number);
    }
    issue_gradient(gradient_tiles, end - 1);
    wgmma_wait<0>(gradient_);
  }

  template <int kColumns>
  __device__ __forceinline__ void store(float factor, void* tensor, const TensorStrides& stride) const {
    const Sm90BackwardItem& item = smem_.item;
    const int row = item.key + static_cast<int>(threadIdx.x % kWarpgroup) / 32 * 16;
    store_accumulator<Element, kColumns>(
        gradient_, factor, static_cast<Bits16*>(tensor) + stride.offset(item.batch, item.head_k, item.k_begin + row),
        stride.row, item.seqlen_k - row);
  }

  Storage& smem_;
  const Sm90BackwardArgs& args_;
  float gradient_[kDepth / 2];  // dv or dk
  float scores_[32];            // s, then p; or dp
  uint32 pairs_[16];            // p or ds

 private:
  // Of the gradient and of the keys: to 128 columns there are registers for both.
  static constexpr int kKeysDepth = kHeadDim <= 64 ? 64 : kHeadDim <= 128 ? 128 : kHeadDim <= 192 ? 192 : 256;
  static constexpr bool kHoldsKeys = kKeysDepth <= 128 && kDepth <= 128;
  using HeldKeys = uint32[kHoldsKeys ? kKeysDepth / 4 : 1];  // A operands

  template <class Ring>
  __device__ __forceinline__ void issue_gradient(const Ring& tiles, uint32 number) {
    tiles.wait(number);
    wgmma_fence();
    const uint32 tile = smem_address(tiles.tile(number));
    begin_gradient<Config, kDepth>(gradient_, pairs_,
                                   MatrixDescriptor::down_columns(tile, BackwardShape<Config>::kPanelBytesM));
  }
  template <class Ring>
  __device__ __forceinline__ void issue_scores(const Bits16* keys, const HeldKeys& held, const Ring& tiles,
                                               uint32 number) {
    tiles.wait(number);  // the tile and its rows' statistics have landed
    static_cast<Derived*>(this)->begin_tile(number);
    wgmma_fence();
    const auto tile = MatrixDescriptor::along_rows(smem_address(tiles.tile(number)));
    if constexpr (kHoldsKeys) {
      begin_held_scores<Config, kHeadDim>(scores_, held, tile);
    } else {
      begin_scores<Config, kHeadDim>(scores_, MatrixDescriptor::along_rows(smem_address(keys)), tile);
    }
  }
  template <class Ring>
  __device__ __forceinline__ void end_tile(const Ring& tiles, uint32 number) {
    wgmma_wait<0>(scores_);
    tiles.release(number);
    static_cast<Derived*>(this)->end_tile(number);
    pin_registers(pairs_);
  }
};

// Warpgroup 1: s, p and dv. p is handed over as floats, and packed for dv.
template <class Config>
class WideValueWarpgroup
    : public WideKeysWarpgroup<Config, WideValueWarpgroup<Config>, Config::kHeadDim, BackwardShape<Config>::kDepthV> {
 public:
  using Base = WideKeysWarpgroup<Config, WideValueWarpgroup<Config>, Config::kHeadDim, BackwardShape<Config>::kDepthV>;
  using typename Base::Element;
  using typename Base::Storage;
  using Alibi = BackwardAlibi<Config>;

  __device__ __forceinline__ WideValueWarpgroup(Storage& smem, const Sm90BackwardArgs& args) : Base(smem, args) {}

  __device__ __forceinline__ void run() {
    Base::walk(smem_.k, smem_.k_full, smem_.q_ring(), smem_.dout_ring());
    const float unit = sm90_backward_unit(sm90_backward_units(Config::kElement).p_bits);
    Base::template store<Config::kHeadDimV>(Score<Config>::kDrops ? unit * power_of_kept() : unit, args_.base.dv,
                                            args_.base.dv_stride);
  }

 private:
  friend Base;
  using Base::args_;
  using Base::pairs_;
  using Base::scores_;
  using Base::smem_;

  __device__ __forceinline__ void begin_tile(uint32 number) {
    if (number == head_end_) begin_head(number);
    const uint32 stage = stage_of<Config::kStages>(number);
    read_row_statistics(lse_, smem_.lse_log2[stage]);
    if constexpr (Score<Config>::kAddsFromMemory) {
      bias_.read(smem_address(smem_.bias[stage]), thread());
      const float2 two = reinterpret_cast<const float2*>(smem_.lse_log2[stage])[thread() % 32];  // a warp: all rows
      largest_lse_ = fmaxf(fabsf(two.x), fabsf(two.y));
    }
    if constexpr (Score<Config>::kTransforms) {
#pragma unroll
      for (float& x : lse_) x -= ReciprocalTransform::lse_offset(args_.options);
    }
    if constexpr (Alibi::kIsOn && Alibi::kIsLinear) alibi_of(number).add_to_rows(lse_);
  }

  // Tile `number` is the first of a query head.
  __device__ __forceinline__ void begin_head(uint32 number) {
    const Sm90BackwardItem& item = smem_.item;
    const auto segment = BackwardSegment::at(item, static_cast<int>(number)).as_uniform();
    rules_ = rules_of_head<Config>(args_, item, segment.head);
    head_end_ = static_cast<uint32>(segment.step_end);
    first_tile_ = uniform(segment.tile - static_cast<int>(number));
    masked_ = MaskedTiles::of<Config>(args_, item, item.key, segment.tile, number, head_end_);
  }

  // s of the tile is done: p, as floats to the other warpgroup and packed.
  __device__ __forceinline__ void end_tile(uint32 number) {
    exponentials(number);
    if constexpr (Score<Config>::kDrops) {
      pack_kept(number);
    } else {
#pragma unroll
      for (int i = 0; i < 16; ++i) pairs_[i] = pack(i, 1.0f);
    }
    hand_over(number);
  }

  // s becomes p, or r of a transform; entries that are not seen become what makes p 0, whatever stood there.
  __device__ __forceinline__ void exponentials(uint32 number) {
    if constexpr (Score<Config>::kTransforms) {
      const auto transform = ReciprocalTransform::of(args_.options, args_.scale_log2);
#pragma unroll
      for (float& x : scores_) x = transform.r(x);
    }
    if constexpr (Score<Config>::kAddsFromMemory) bias_.add(scores_, args_.base.scale);
    if (masked_.has<Config>(number)) {
      mask_scores<Config>(scores_, smem_.item, BackwardBand::of<Config>(args_.options), tile_of_rows(number),
                          smem_.item.key, wide_unseen<Config>(args_));
    }
    if constexpr (Score<Config>::kAddsFromMemory) {
#pragma unroll
      for (int i = 0; i < 32; ++i) scores_[i] = biased_probability<Config>(scores_[i], lse_[backward_statistic(i)]);
      if (__any_sync(kAllLanes, largest_lse_ >= kCoarseLse)) divide_by_sums(number);
    }
    if constexpr (Score<Config>::kTransforms || Score<Config>::kAddsFromMemory) return;
    Alibi alibi = {rules_.slope, 0.0f};
    if constexpr (Alibi::kIsOn && !Alibi::kIsLinear) alibi = alibi_of(number);
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      scores_[i] = exp2_fast(alibi.exponent(i, scores_[i], args_.scale_log2, lse_[backward_statistic(i)]));
    }
  }
  // p of rows whose lse is coarse, by what they sum to: lse_rounding.cuh.
  __device__ __forceinline__ void divide_by_sums(uint32 number) {
    const auto segment = BackwardSegment::at(smem_.item, static_cast<int>(number));
    const float* sums = args_.log2_sums + backward_stats_row(args_, smem_.item, segment.head, segment.tile);
#pragma unroll
    for (int i = 0; i < 16; i += 4) {
      const float4 of_rows = *reinterpret_cast<const float4*>(sums + thread() % 4 * 4 + i * 4);
      const float log2_sum[4] = {of_rows.x, of_rows.y, of_rows.z, of_rows.w};
#pragma unroll
      for (int n = 0; n < 32; ++n) {
        const int statistic = backward_statistic(n) - i;
        if (statistic >= 0 && statistic < 4) scores_[n] *= exp2_fast(-log2_sum[statistic]);
      }
    }
  }
  [[nodiscard]] __device__ __forceinline__ Alibi alibi_of(uint32 number) const {
    return Alibi::of(rules_, smem_.item, tile_of_rows(number), smem_.item.key, thread());
  }

  // Pair i of p, packed. If scores are transformed, p is made of r here.
  [[nodiscard]] __device__ __forceinline__ uint32 pack(int i, float scale) {
    float p[2];
#pragma unroll
    for (int b = 0; b < 2; ++b) {
      float& score = scores_[2 * i + b];
      p[b] = score;
      if constexpr (Score<Config>::kTransforms) {
        p[b] = ReciprocalTransform::of(args_.options, args_.scale_log2)
                   .probability(score, lse_[backward_statistic(2 * i + b)]);
        score = p[b] * ReciprocalTransform::quarter_slope(score);
      }
    }
    return Element::pack(p[0] * scale, p[1] * scale);
  }

  // Dropout's scale is a factor of p before it is rounded, as in other implementations: entries that are alike are then
  // rounded as theirs are. But for its power of two, which float16 has no room for and which dv gets at the end.
  [[nodiscard]] __device__ __forceinline__ float power_of_kept() const {
    constexpr uint32 kExponent = 0x7f800000;
    return __uint_as_float(__float_as_uint(args_.options.dropout_scale) & kExponent);
  }
  // p with what dropout does not keep as 0, packed; and for the other warpgroup, which wants both p and the decision,
  // as a negative number.
  __device__ __forceinline__ void pack_kept(uint32 number) {
    uint32 kept[kKeptWords<32>];
    kept_bits<32, true>(rules_.tile(int64{tile_of_rows(number)} * kBackwardRows, smem_.item.key), kept, thread());
    const float scale = args_.options.dropout_scale / power_of_kept();
#pragma unroll
    for (int i = 0; i < 16; ++i) pairs_[i] = pack(i, scale);
    drop_pairs<32>(pairs_, kept);
#pragma unroll
    for (int i = 0; i < 32; ++i) scores_[i] = (kept[0] >> i & 1u) != 0 ? scores_[i] : -scores_[i];
  }

  __device__ __forceinline__ void hand_over(uint32 number) {
    const uint32 buffer = stage_of<Base::kHandovers>(number);
    smem_.p_empty[buffer].wait(parity_of<Base::kHandovers>(number) ^ 1);  // p of two tiles before has been read
#pragma unroll
    for (int i = 0; i < 32; i += 4) {
      smem_.p[buffer][i / 4][thread()] = make_float4(scores_[i], scores_[i + 1], scores_[i + 2], scores_[i + 3]);
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
  float lse_[16];
  float largest_lse_ = 0.0f;  // kAddsFromMemory: in magnitude, of the lane's two of the tile's rows
  WideBias<Config, true> bias_;
};

// Warpgroup 2: dp, ds and dk.
template <class Config>
class WideKeyWarpgroup
    : public WideKeysWarpgroup<Config, WideKeyWarpgroup<Config>, Config::kHeadDimV, BackwardShape<Config>::kDepth> {
 public:
  using Base = WideKeysWarpgroup<Config, WideKeyWarpgroup<Config>, Config::kHeadDimV, BackwardShape<Config>::kDepth>;
  using typename Base::Element;
  using typename Base::Storage;

  __device__ __forceinline__ WideKeyWarpgroup(Storage& smem, const Sm90BackwardArgs& args) : Base(smem, args) {}

  __device__ __forceinline__ void run() {
    Base::walk(smem_.v, smem_.v_full, smem_.dout_ring(), smem_.q_ring());
    Base::template store<Config::kHeadDim>(args_.base.gradient_scale, args_.base.dk, args_.base.dk_stride);
  }

 private:
  friend Base;
  using Base::args_;
  using Base::pairs_;
  using Base::scores_;
  using Base::smem_;

  __device__ __forceinline__ void begin_tile(uint32 number) {
    read_row_statistics(delta_, smem_.delta[stage_of<Config::kStages>(number)]);
#pragma unroll
    for (float& x : delta_) x *= kScoreGradientUnit<Config>;
  }

  // dp of the tile is done: ds, of the p that the other warpgroup leaves.
  __device__ __forceinline__ void end_tile(uint32 number) {
    const uint32 buffer = stage_of<Base::kHandovers>(number);
    smem_.p_full[buffer].wait(parity_of<Base::kHandovers>(number));  // p of the tile is there
#pragma unroll
    for (int i = 0; i < 32; i += 4) {
      const float4 p = smem_.p[buffer][i / 4][threadIdx.x % kWarpgroup];
      pairs_[i / 2] = Element::pack(score_gradient(p.x, i), score_gradient(p.y, i + 1));
      pairs_[i / 2 + 1] = Element::pack(score_gradient(p.z, i + 2), score_gradient(p.w, i + 3));
    }
    __syncwarp();
    arrive_as_warp(smem_.p_empty[buffer]);
  }

  // p: negative where dropout does not keep it.
  [[nodiscard]] __device__ __forceinline__ float score_gradient(float p, int i) const {
    const float dp = Score<Config>::kDrops && p < 0.0f ? 0.0f : scores_[i];
    return wide_score_gradient<Config>(Score<Config>::kDrops ? fabsf(p) : p, dp, delta_[backward_statistic(i)]);
  }

  float delta_[16];
};

// By one warp: k and the tiles of q, or v and those of dout, into buffers as they become free.
template <class Config, bool kIsQ>
__device__ __forceinline__ void load_wide_keys(Sm90BackwardWideKeysStorage<Config>& smem,
                                               const Sm90BackwardArgs& args) {
  using Storage = Sm90BackwardWideKeysStorage<Config>;
  const Sm90BackwardItem& item = smem.item;
  if (item.begin == item.end) return;
  BackwardLoads<Config, Storage> loads(smem, args, smem.tail_full[kIsQ ? 0 : 1]);
  BackwardSegment at = BackwardSegment::at(item, 0);
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
      if constexpr (Score<Config>::kAddsFromMemory) {
        if (threadIdx.x % 32 == 0) {
          load_wide_bias<1>(&smem.bias[stage], args, smem.q_full[stage], item.key, at.tile * Config::kBlockM, at.head,
                            item.batch);
        }
      }
    } else {
      smem.dout_empty[stage].wait(parity);  // dp and dv of the tile before have read it
      loads.load_dout(item, at.head, at.tile, stage);
    }
    if (++at.tile == at.tile_end && step + 1 < item.end) at = BackwardSegment::at(item, step + 1);
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
