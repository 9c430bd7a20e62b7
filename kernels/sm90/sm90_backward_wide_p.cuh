// Warpgroup 1 of sm90_backward_wide_keys.cuh. It computes p from s, packs p for the product dv, and passes p as floats
// to warpgroup 2, which computes ds.
#pragma once

#include "../attention/lse_rounding.cuh"
#include "../attention/score_transform.cuh"
#include "packed_drop.cuh"
#include "sm90_backward_scores.cuh"
#include "sm90_backward_units.cuh"
#include "sm90_backward_wide_scores.cuh"
#include "sm90_backward_wide_storage.cuh"

namespace attend {

// The PairMaker of WideKeysWarpgroup that turns s = k q^T into p, for dv += p dout.
template <class Config>
class WideP {
 public:
  using Shape = BackwardShape<Config>;
  using Element = ElementOf<Config>;
  using Storage = Sm90BackwardWideKeysStorage<Config>;
  using PositionTerm = BackwardPositionTerm<Config>;
  static constexpr int kHeadDim = Config::kHeadDim;           // columns of k and q without padding
  static constexpr int kKeysDepth = Shape::kDepth;            // columns of k in shared memory, with padding
  static constexpr int kGradientHeadDim = Config::kHeadDimV;  // columns of dv without padding
  static constexpr int kGradientDepth = Shape::kDepthV;

  __device__ __forceinline__ WideP(Storage& smem, const Sm90BackwardArgs& args) : smem_(smem), args_(args) {}

  [[nodiscard]] __device__ __forceinline__ const Bits16* keys() const { return smem_.k; }
  [[nodiscard]] __device__ __forceinline__ Mbarrier& keys_full() const { return smem_.k_full; }
  [[nodiscard]] __device__ __forceinline__ auto score_tiles() const { return smem_.q_ring(); }
  [[nodiscard]] __device__ __forceinline__ auto gradient_tiles() const { return smem_.dout_ring(); }

  [[nodiscard]] __device__ __forceinline__ WideGradient gradient() const {
    const float unit = sm90_backward_unit(sm90_backward_units(Config::kElement).p_bits);
    return {args_.base.dv, args_.base.dv_stride, Score<Config>::kDrops ? unit * power_of_kept() : unit};
  }

  // Reads the row statistics of the tile, after the tile has arrived and before its products are issued. While products
  // run, reads of shared memory are slow.
  __device__ __forceinline__ void read_rows(uint32 number) {
    if (number == head_end_) begin_head(number);
    const uint32 stage = stage_of<Config::kStages>(number);
    read_row_statistics(lse_, smem_.lse_log2[stage]);
    read_seen(stage);
    if constexpr (Score<Config>::kAddsFromMemory) {
      terms_.read(smem_address(smem_.terms[stage]), thread());
      // The lanes of a warp together read all rows of the tile.
      const float2 two = reinterpret_cast<const float2*>(smem_.lse_log2[stage])[thread() % 32];
      largest_lse_ = fmaxf(fabsf(two.x), fabsf(two.y));
    }
    if constexpr (PositionTerm::kIsOn && PositionTerm::kIsLinear) position_term(number).add_to_rows(lse_);
  }

  // Computes p of the tile from s, which must be complete. Overwrites s with the values that warpgroup 2 needs.
  __device__ __forceinline__ void make_pairs(uint32 number, float (&s)[32], uint32 (&p)[16]) {
    exponentials(number, s);
    uint32 kept[kKeptWords<32>] = {};
    if constexpr (Score<Config>::kDrops) {
      pack_kept(number, s, p, kept);
    } else {
#pragma unroll
      for (int i = 0; i < 16; ++i) p[i] = pack(number, i, s, 1.0f);
    }
    hand_over(number, s, kept[0]);
  }

 private:
  // Prepares the computation of a query head. Tile `number` is its first tile.
  __device__ __forceinline__ void begin_head(uint32 number) {
    const Sm90BackwardItem& item = smem_.item;
    const auto segment = BackwardSegment::at(item, static_cast<int>(number)).as_uniform();
    rules_ = rules_of_head<Config>(args_, item, segment.head);
    head_end_ = static_cast<uint32>(segment.step_end);
    first_tile_ = uniform(segment.tile - static_cast<int>(number));
    masked_ = MaskedTiles::of<Config>(args_, item, item.key, segment.tile, number, head_end_);
  }

  // Turns s into p, or into the reciprocal r of a transform. Hidden entries get a value that makes p 0, even if they
  // held NaN.
  __device__ __forceinline__ void exponentials(uint32 number, float (&s)[32]) {
    if constexpr (Score<Config>::kTransforms) {
#pragma unroll
      for (float& x : s) x = args_.transform.r(x);
    }
    if constexpr (Score<Config>::kAddsFromMemory) terms_.add(s, args_.base.scale);
    if (masked_.has<Config>(number, head_end_)) {
      mask_scores<Config>(s, smem_.item, BackwardBand::of<Config>(args_.options), tile_of_rows(number), smem_.item.key,
                          wide_unseen<Config>(args_));
    }
    if constexpr (has_block_mask<Config>()) {
      if (pattern_ != kAllSeen) hide(s);
    }
    if constexpr (Score<Config>::kAddsFromMemory) {
      exponentials_of_sums(number, s);
    } else if constexpr (!Score<Config>::kTransforms && !Score<Config>::kIsCustom) {
      exponentials_of_products(number, s);
    }
  }
  // Computes p if s holds scores with a bias.
  __device__ __forceinline__ void exponentials_of_sums(uint32 number, float (&s)[32]) {
#pragma unroll
    for (int i = 0; i < 32; ++i) s[i] = probability_with_terms<Config>(s[i], lse_[backward_statistic(i)]);
    if (__any_sync(kAllLanes, largest_lse_ >= kCoarseLse)) divide_by_sums(number, s);
  }
  // Divides p by the row's sum of p if lse of the row is coarse. lse_rounding.cuh explains why.
  __device__ __forceinline__ void divide_by_sums(uint32 number, float (&s)[32]) {
    const auto segment = BackwardSegment::at(smem_.item, static_cast<int>(number));
    const float* sums = args_.log2_sums + backward_stats_row(args_, smem_.item, segment.head, segment.tile);
#pragma unroll
    for (int i = 0; i < 16; i += 4) {
      const float4 of_rows = *reinterpret_cast<const float4*>(sums + thread() % 4 * 4 + i * 4);
      const float log2_sum[4] = {of_rows.x, of_rows.y, of_rows.z, of_rows.w};
#pragma unroll
      for (int n = 0; n < 32; ++n) {
        const int statistic = backward_statistic(n) - i;
        if (statistic >= 0 && statistic < 4) s[n] *= exp2_fast(-log2_sum[statistic]);
      }
    }
  }
  // Computes p if s holds products q.k. Adds the position term if there is one.
  __device__ __forceinline__ void exponentials_of_products(uint32 number, float (&s)[32]) {
    PositionTerm term = {rules_.slope, 0.0f};
    if constexpr (PositionTerm::kIsOn && !PositionTerm::kIsLinear) term = position_term(number);
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      s[i] = exp2_fast(term.exponent(i, s[i], args_.scale_log2, lse_[backward_statistic(i)]));
    }
  }
  [[nodiscard]] __device__ __forceinline__ PositionTerm position_term(uint32 number) const {
    return PositionTerm::of(rules_, smem_.item, tile_of_rows(number), smem_.item.key, thread());
  }

  // Returns entry i of p. Replaces `product`, which may be hidden, by p times the derivative of the custom score.
  [[nodiscard]] __device__ __forceinline__ float custom_probability(uint32 number, int i, float& product) const {
    float slope;
    const CustomScoreOffset at = {accumulator_column(thread()), backward_column(i), accumulator_row(thread()),
                                  i / 2 % 2 * kRowHalf};
    const float exponent =
        custom_exponent<true>(rules_of_tile(number), product, args_.base.scale, wide_unseen<Config>(args_), at, slope);
    const float p = exp2_fast(exponent - lse_[backward_statistic(i)]);
    product = Score<Config>::kHasSlopes ? times_slope<Config>(p, slope) : p;
    return p;
  }

  // Returns pair i of p times `scale`, packed. With a transform s still holds the reciprocal r, and with a custom score
  // it holds products. In these two cases the function computes p and replaces s by p times the derivative, or by p
  // times a quarter of the derivative for a transform. ds needs this value.
  [[nodiscard]] __device__ __forceinline__ uint32 pack(uint32 number, int i, float (&s)[32], float scale) {
    float p[2];
#pragma unroll
    for (int b = 0; b < 2; ++b) {
      float& score = s[2 * i + b];
      p[b] = score;
      if constexpr (Score<Config>::kTransforms) {
        p[b] = args_.transform.probability(score, lse_[backward_statistic(2 * i + b)]);
        score = p[b] * ReciprocalTransform::quarter_slope(score);
      }
      if constexpr (Score<Config>::kIsCustom) p[b] = custom_probability(number, 2 * i + b, score);
    }
    return Element::pack(p[0] * scale, p[1] * scale);
  }

  // Returns the largest power of two that does not exceed the dropout factor 1 / (1 - p). The factor divided by this
  // power multiplies p before p is rounded. Other implementations also apply the factor before rounding, so equal
  // entries are rounded alike. A larger p could exceed the float16 range, so the power of two is applied to dv instead.
  [[nodiscard]] __device__ __forceinline__ float power_of_kept() const {
    constexpr uint32 kExponent = 0x7f800000;
    return __uint_as_float(__float_as_uint(kept_scale<Config>(args_.options)) & kExponent);
  }
  // Packs p, with 0 for dropped entries.
  __device__ __forceinline__ void pack_kept(uint32 number, float (&s)[32], uint32 (&p)[16],
                                            uint32 (&kept)[kKeptWords<32>]) {
    kept_bits_transposed<32>(rules_of_tile(number), kept, thread());
    const float scale = kept_scale<Config>(args_.options) / power_of_kept();
#pragma unroll
    for (int i = 0; i < 16; ++i) p[i] = pack(number, i, s, scale);
    drop_pairs<32>(p, kept);
  }

  // Passes p of all entries to warpgroup 2, together with the bits of the entries that dropout keeps.
  __device__ __forceinline__ void hand_over(uint32 number, const float (&p)[32], uint32 kept) {
    const uint32 buffer = stage_of<kBackwardWideHandovers>(number);
    // Wait until warpgroup 2 has read p of the tile two steps before.
    smem_.p_empty[buffer].wait(parity_of<kBackwardWideHandovers>(number) ^ 1);
#pragma unroll
    for (int i = 0; i < 32; i += 4) {
      smem_.p[buffer][i / 4][thread()] = make_float4(p[i], p[i + 1], p[i + 2], p[i + 3]);
    }
    if constexpr (Score<Config>::kDrops) smem_.kept.words[buffer][thread()] = kept;
    __syncwarp();
    arrive_as_warp(smem_.p_full[buffer]);
  }

  [[nodiscard]] static __device__ __forceinline__ int thread() {
    return static_cast<int>(threadIdx.x % kWarpgroup);
  }
  [[nodiscard]] __device__ __forceinline__ int tile_of_rows(uint32 number) const {
    if constexpr (has_block_mask<Config>()) return row_tile_;
    return first_tile_ + static_cast<int>(number);
  }
  // With a block mask, reads the index of the query tile in the buffer, and which of its scores are visible.
  __device__ __forceinline__ void read_seen(uint32 stage) {
    if constexpr (has_block_mask<Config>()) {
      row_tile_ = uniform(smem_.seen.of_stage[stage].number());
      pattern_ = uniform(smem_.seen.of_stage[stage].pattern(0));
      seen_ = 0;
      if (pattern_ < 0) return;
      seen_ = __ldg(args_.options.block_mask.patterns + int64{pattern_} * kPatternWords + thread());
    }
  }
  __device__ __forceinline__ void hide(float (&s)[32]) const {
    const float hidden = wide_unseen<Config>(args_);
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      if ((seen_ >> i & 1) == 0) s[i] = hidden;
    }
  }

  [[nodiscard]] __device__ __forceinline__ TileRules<Config> rules_of_tile(uint32 number) const {
    return rules_.tile(int64{tile_of_rows(number)} * kBackwardRows, smem_.item.key);
  }

  Storage& smem_;
  const Sm90BackwardArgs& args_;
  uint32 head_end_ = 0;  // number of the first tile of the next query head
  int first_tile_ = 0;   // the query tile with number n has index first_tile_ + n in the head
  MaskedTiles masked_ = {};
  int row_tile_ = 0, pattern_ = kAllSeen;  // index and pattern of the query tile whose lse was read last. Used with a
                                           // block mask
  uint32 seen_ = 0;                        // one bit for each score of this thread, set if the score is visible. Used
                                           // with a block mask
  ScoreRules<Config> rules_ = {};          // score modifications of the head; members that no modification reads occupy
                                           // no registers
  float lse_[16];
  float largest_lse_ = 0.0f;  // the larger |lse| of the two query rows that this lane has read. Used if kAddsFromMemory
                              // is set
  WideTerms<Config, true> terms_;
};

}  // namespace attend
