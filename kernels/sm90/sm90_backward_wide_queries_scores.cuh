// The query rows of a computing warpgroup of sm90_backward_wide_queries.cuh. Handles their masks, and computes p from
// the products.
#pragma once

#include "../attention/accumulator_scores.cuh"
#include "../attention/lse_rounding.cuh"
#include "../attention/score_transform.cuh"
#include "../tiles/smem_tile.cuh"
#include "sm90_backward_scores.cuh"
#include "sm90_backward_wide_scores.cuh"
#include "sm90_backward_wide_storage.cuh"

namespace attend {

// Key tiles are numbered from the first one of the thread block. Each thread holds two of the rows.
template <class Config>
class WideQueryScores {
 public:
  using Storage = Sm90BackwardWideQueriesStorage<Config>;

  Storage& smem;
  const Sm90BackwardArgs& args;
  const int warpgroup;  // index among the computing warpgroups

  __device__ __forceinline__ WideQueryScores(Storage& storage, const Sm90BackwardArgs& arguments, int number)
      : smem(storage), args(arguments), warpgroup(number) {}

  // Prepares the state that is the same for all key tiles. Returns the number of the last tile that the rows see, plus
  // one. Tiles before the first visible one are computed with a mask.
  [[nodiscard]] __device__ __forceinline__ uint32 begin() {
    const BackwardRowBlock& block = smem.block;
    const BackwardRows rows = block.of_warpgroup<Config>(warpgroup);
    if constexpr (has_block_mask<Config>()) list_ = block.list<Config>(args);
    diagonal_ = uniform(rows.row + block.offset());
    first_key_ = uniform(block.rows.tile * Config::kBlockN);
    int seen_by_all = static_cast<int>(block.span.seqlen_k);  // the first key that some row does not see
    if constexpr (Config::kMask != MaskKind::kFull) seen_by_all = min(seen_by_all, diagonal_ + block.band.right + 1);
    masked_from_ = uniform(max(0, (seen_by_all - first_key_) / Config::kBlockN));
    if constexpr (Config::kMask == MaskKind::kWindow) {
      // The first key that all rows see.
      const int first = diagonal_ + kWarpgroupRows - 1 - block.band.left - first_key_;
      masked_before_ = uniform(first <= 0 ? 0 : (first - 1) / Config::kBlockN + 1);
    }
    read_statistics(rows);
    if constexpr (Score<Config>::kAddsByPosition || Score<Config>::kDrops || Score<Config>::kIsCustom) {
      rules_ = ScoreRules<Config>::make(args.options, args.base.scale, block.span, block.sequence,
                                        static_cast<uint32>(block.head), args.base.num_heads_q);
      rules_.slope *= kLog2E;
    }
    return static_cast<uint32>(uniform(rows.tile_end > rows.tile ? rows.tile_end - block.rows.tile : 0));
  }

  // Decides which entries of the tile dropout keeps, and reads which entries are visible. No products run meanwhile,
  // because their results need the same registers.
  __device__ __forceinline__ void decide(uint32 number) {
    tile_ = list_.tile(static_cast<int>(number), warpgroup, thread());
    if constexpr (Score<Config>::kDrops) {
      const int row = diagonal_ - smem.block.offset();
      TileRules<Config> rules = rules_.tile(row, first_key_ + tile_.number * Config::kBlockN);
      // Recomputed, so that the keys of all Philox rounds occupy no registers.
      rules.drop_mask.key0 = recomputed(rules.drop_mask.key0);
      rules.drop_mask.key1 = recomputed(rules.drop_mask.key1);
      kept_bits<32>(rules, kept_, thread());
    }
  }

  // Turns s of the tile into p. The product s must be complete. With a transform, s becomes p times a quarter of the
  // transform's derivative. Hidden entries become 0, even if they held NaN.
  __device__ __forceinline__ void probabilities(uint32 number, float (&s)[32]) {
    const int key = first_key_ + tile_.number * Config::kBlockN;
    values(number, s);
    if (is_masked(tile_.number)) mask(key, s);
    tile_.hide(s, wide_unseen<Config>(args));
    exponentials(key, s);
  }

  // Sets dp of dropped entries to 0.
  __device__ __forceinline__ void drop_gradients(float (&dp)[32]) const {
    if constexpr (Score<Config>::kDrops) drop(dp, kept_);
  }

  // Returns delta for entry i of the accumulator, multiplied by kScoreGradientUnit.
  [[nodiscard]] __device__ __forceinline__ float delta(int i) const { return delta_[i / 2 % 2]; }

 private:
  // Turns the products in s into the values to which the mask is applied. These are the reciprocals r of a transform,
  // scores with a bias, or otherwise the products.
  __device__ __forceinline__ void values(uint32 number, float (&s)[32]) {
    if constexpr (Score<Config>::kTransforms) {
#pragma unroll
      for (float& x : s) x = args.transform.r(x);
    }
    if constexpr (Score<Config>::kAddsFromMemory) {
      WideTerms<Config, false> terms;
      const uint32 stage = stage_of<Storage::kStagesTerms>(number);
      smem.terms_full[stage].wait(parity_of<Storage::kStagesTerms>(number));  // wait until the bias has arrived
      terms.read(smem_address(smem.terms[stage * Storage::kWarpgroups + warpgroup]), thread());
      terms.add(s, args.base.scale);
      __syncwarp();
      arrive_as_warp(smem.terms_empty[stage]);
    }
  }

  __device__ __forceinline__ void exponentials(int key, float (&s)[32]) {
    if constexpr (Score<Config>::kAddsFromMemory) {
      exponentials_of_sums(s);
    } else if constexpr (Score<Config>::kTransforms) {
      exponentials_of_transform(s);
    } else if constexpr (Score<Config>::kIsCustom) {
      exponentials_of_function(key, s);
    } else {
      exponentials_of_products(key, s);
    }
  }
  // Computes p if s holds scores with a bias.
  __device__ __forceinline__ void exponentials_of_sums(float (&s)[32]) {
#pragma unroll
    for (int i = 0; i < 32; ++i) s[i] = probability_with_terms<Config>(s[i], lse_[i / 2 % 2]);
    if (has_coarse_rows_) divide_by_sums(s);
  }
  __device__ __forceinline__ void exponentials_of_transform(float (&s)[32]) {
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      s[i] = args.transform.probability(s[i], lse_[i / 2 % 2]) * ReciprocalTransform::quarter_slope(s[i]);
    }
  }
  // Computes p times the derivative of the custom score, if s holds products q.k.
  __device__ __forceinline__ void exponentials_of_function(int key, float (&s)[32]) {
    const TileRules<Config> tile = rules_.tile(diagonal_ - smem.block.offset(), key);
    const int lane = thread();
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      float slope;
      const CustomScoreOffset at = {accumulator_row(lane), i / 2 % 2 * kRowHalf, accumulator_column(lane),
                                    backward_column(i)};
      const float exponent = custom_exponent<true>(tile, s[i], args.base.scale, wide_unseen<Config>(args), at, slope);
      s[i] = exp2_fast(exponent - lse_[i / 2 % 2]);
      if constexpr (Score<Config>::kHasSlopes) s[i] = times_slope<Config>(s[i], slope);
    }
  }
  // Computes p if s holds products q.k. Adds the position term if there is one.
  __device__ __forceinline__ void exponentials_of_products(int key, float (&s)[32]) {
    const float distance = static_cast<float>(first_diagonal() - key - accumulator_column(thread()));
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      // If rows see no key beyond the diagonal, the position term is linear in row and key. The row's contribution is
      // then added to its lse.
      constexpr bool kIsLinear = Config::kMask != MaskKind::kFull;
      const float base =
          Score<Config>::kAddsByPosition && kIsLinear ? fmaf(rules_.slope, distance + h * kRowHalf, lse_[h]) : lse_[h];
#pragma unroll
      for (int i = 2 * h; i < 32; i += i % 2 == 0 ? 1 : 3) {
        const auto column = static_cast<float>(backward_column(i));
        float addend = -base;
        if constexpr (Score<Config>::kAddsByPosition) {
          addend = kIsLinear ? fmaf(rules_.slope, column, -base)
                             : fmaf(-rules_.slope, fabsf(distance + (h * kRowHalf - column)), -base);
        }
        s[i] = exp2_fast(fmaf(s[i], args.scale_log2, addend));
      }
    }
  }

  // Returns the key on the diagonal of the thread's first row.
  [[nodiscard]] __device__ __forceinline__ int first_diagonal() const {
    return diagonal_ + accumulator_row(thread());
  }
  // Returns whether the tile has hidden entries in rows that exist.
  [[nodiscard]] __device__ __forceinline__ bool is_masked(int number) const {
    return number >= masked_from_ || (Config::kMask == MaskKind::kWindow && number < masked_before_);
  }
  __device__ __forceinline__ void mask(int key, float (&s)[32]) {
    const float unseen = wide_unseen<Config>(args);
    const BackwardRowBlock& block = smem.block;
    const int first = key + accumulator_column(thread());
    const int keys_left = static_cast<int>(block.span.seqlen_k) - first;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      int end = keys_left;  // the row sees columns [begin, end), counted from the thread's first column
      int begin = 0;
      if constexpr (Config::kMask != MaskKind::kFull) {
        end = min(end, first_diagonal() + h * kRowHalf + block.band.right + 1 - first);
      }
      if constexpr (Config::kMask == MaskKind::kWindow) {
        begin = first_diagonal() + h * kRowHalf - block.band.left - first;
      }
#pragma unroll
      for (int i = 2 * h; i < 32; i += 4) {
#pragma unroll
        for (int b = 0; b < 2; ++b) {
          const int column = backward_column(i + b);
          if (column >= end || (Config::kMask == MaskKind::kWindow && column < begin)) s[i + b] = unseen;
        }
      }
    }
  }

  // Returns the position of a row's statistics. `row` is an index in the sequence, and must be the first row of a tile.
  [[nodiscard]] __device__ __forceinline__ int64 first_statistic(int row) const {
    const BackwardRowBlock& block = smem.block;
    return (int64{block.span.batch} * args.base.num_heads_q + block.head) * args.stats_rows +
           backward_stats_begin<Config>(block.span, block.sequence) + row;
  }
  __device__ __forceinline__ void read_statistics(const BackwardRows& rows) {
    const int64 first = first_statistic(rows.row);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = accumulator_row(thread()) + h * kRowHalf;
      lse_[h] = kInfinity;  // value for rows that do not exist, whose statistics may lie outside the workspace
      delta_[h] = 0.0f;
      if (row >= rows.count) continue;
      const int64 place = first + row / 16 * 16 + sm90_backward_stats_place(row);
      lse_[h] = args.lse_log2[place];
      delta_[h] = args.delta[place] * kScoreGradientUnit<Config>;
    }
    if constexpr (Score<Config>::kAddsFromMemory) {
      has_coarse_rows_ = __any_sync(kAllLanes, is_coarse(lse_[0]) || is_coarse(lse_[1]));
    }
  }
  // Divides p by the row's sum of p if lse of the row is coarse. lse_rounding.cuh explains why.
  __device__ __forceinline__ void divide_by_sums(float (&s)[32]) {
    const int64 first = first_statistic(smem.block.rows.row + warpgroup * kWarpgroupRows);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (!is_coarse(lse_[h])) continue;
      const int row = accumulator_row(thread()) + h * kRowHalf;
      const float factor = exp2_fast(-args.log2_sums[first + row / 16 * 16 + sm90_backward_stats_place(row)]);
#pragma unroll
      for (int i = 2 * h; i < 32; i += i % 2 == 0 ? 1 : 3) s[i] *= factor;
    }
  }

  // Returns the index of the thread in its warpgroup. It is recomputed at each use, so that it occupies no register
  // between uses.
  [[nodiscard]] static __device__ __forceinline__ int thread() {
    return recomputed_thread() % kWarpgroup;
  }

  int diagonal_;       // key on the diagonal of the warpgroup's first row
  int first_key_;      // first key of tile 0
  int masked_from_;    // tiles with this number or a higher one have hidden entries
  int masked_before_;  // if the mask is a window, tiles with a lower number have hidden entries, too
  KeyTileList<Config, Storage::kWarpgroups> list_ = {};
  SeenKeyTile<Config> tile_ = {};  // the current tile, set by decide()
  ScoreRules<Config> rules_ = {};
  float lse_[2], delta_[2];
  bool has_coarse_rows_ = false;      // whether some row of the warp has a coarse lse. Used if kAddsFromMemory is set
  uint32 kept_[kKeptWords<32>] = {};  // one bit for each entry of the tile, set if dropout keeps the entry
};

}  // namespace attend
