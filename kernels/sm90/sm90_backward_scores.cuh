// Masks and the position term (ALiBi) for the scores of a transposed tile. The rows of this tile are keys, and its
// columns are query rows.
#pragma once

#include "../attention/accumulator_scores.cuh"
#include "../common/recomputed.cuh"
#include "../common/smaller_or_nan.cuh"
#include "../isa/wgmma.cuh"
#include "sm90_backward_units.cuh"
#include "sm90_backward_work.cuh"

namespace attend {

// Sets hidden entries of s to `unseen`, even if they hold NaN. s has 64 keys from `key` on and one tile of 64 query
// rows, in accumulator order. With a custom score, entries of query rows beyond the sequence also count as hidden. The
// custom score may be NaN there, so no lse could make p 0.
template <class Config>
__device__ __forceinline__ void mask_scores(float (&s)[32], const Sm90BackwardItem& item, const BackwardBand& band,
                                            int tile, int key, float unseen) {
  const int lane = static_cast<int>(threadIdx.x % kWarpgroup);
  const int thread_key = key + lane / 32 * 16 + lane % 32 / 4;
  const int row = tile * kBackwardRows + lane % 4 * 2;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    // A row sees keys that are at most band.right positions after its diagonal key and at most band.left positions
    // before it.
    int before = row + item.offset() - (thread_key + 8 * h) + band.right;
    if (Config::kMask == MaskKind::kFull) before = 0;
    if (thread_key + 8 * h >= item.seqlen_k) before = -kNearlyEverywhere;
#pragma unroll
    for (int i = 2 * h; i < 32; i += 4) {
#pragma unroll
      for (int b = 0; b < 2; ++b) {
        const int distance = before + (Config::kMask == MaskKind::kFull ? 0 : i / 4 * 8 + b);
        bool is_seen = distance >= 0;
        if constexpr (Config::kMask == MaskKind::kWindow) {
          is_seen = static_cast<uint32>(distance) <= static_cast<uint32>(band.left) + static_cast<uint32>(band.right);
        }
        if constexpr (Score<Config>::kIsCustom) is_seen &= row + i / 4 * 8 + b < item.seqlen_q;
        if (!is_seen) s[i + b] = unseen;
      }
    }
  }
}

// Returns the score modifications of one query head. The ALiBi slope is multiplied by log2(e).
template <class Config>
[[nodiscard]] __device__ __forceinline__ ScoreRules<Config> rules_of_head(const Sm90BackwardArgs& args,
                                                                          const Sm90BackwardItem& item, int head) {
  if constexpr (!Score<Config>::kAddsByPosition && !Score<Config>::kDrops && !Score<Config>::kIsCustom) return {};
  auto rules = ScoreRules<Config>::make(args.options, args.base.scale, item.span(), static_cast<uint32>(item.sequence),
                                        static_cast<uint32>(head), args.base.num_heads_q);
  rules.slope *= kLog2E;
  return rules;
}

// Reads statistics 4 i to 4 i + 3 of this thread's 16 query rows. These rows are the columns of its accumulators.
__device__ __forceinline__ void read_four_statistics(float* x, const float* stats, int i) {
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
               : "r"(smem_address(stats) + threadIdx.x % 4 * 16 + i * 64));
}
// Reads the statistics of all 16 query rows of this thread.
__device__ __forceinline__ void read_row_statistics(float (&x)[16], const float* stats) {
#pragma unroll
  for (int i = 0; i < 4; ++i) read_four_statistics(x + 4 * i, stats, i);
}

// backward_statistic() returns the index of the row statistic for entry i of the thread's accumulator.
// backward_column() returns the entry's distance, in columns, from the thread's first column.
[[nodiscard]] __device__ __forceinline__ constexpr int backward_statistic(int i) {
  return i / 8 * 4 + i / 4 % 2 * 2 + i % 2;
}
[[nodiscard]] __device__ __forceinline__ constexpr int backward_column(int i) {
  return i / 4 * kColumnsOfTile + i % 2;
}

constexpr int kCustomTogether = 8;  // number of scores whose loads a thread issues before it waits for them

// Returns the custom score of a product, multiplied by log2(e). Returns -inf if mask_scores() has hidden the product.
template <bool kWithSlope, class Config>
[[nodiscard]] __device__ __forceinline__ float custom_exponent(const TileRules<Config>& tile, float product,
                                                               float scale, float unseen,
                                                               const CustomScoreOffset& in_tile, float& slope) {
  const float value = tile.template custom_score<kWithSlope>(product * scale, in_tile, slope);
  return product == unseen ? -kInfinity : value * kLog2E;
}

// Returns p of a custom score. `lse` is the row's lse in the units of args.lse_log2.
template <class Config>
[[nodiscard]] __device__ __forceinline__ float custom_probability(float value, float lse) {
  if constexpr (!Score<Config>::kMayBeLowest) return exp2_fast(value * kLog2E - lse);
  constexpr auto kBits = static_cast<float>(sm90_backward_units(Config::kElement).p_bits);
  return exp2_fast(smaller_or_nan(fmaf(value - lse, kLog2E, kBits), kBits));
}

// Turns a transposed tile of products into p, for a custom score whose derivative is 1. Hidden entries get an arbitrary
// value. `lane` is the index in the warpgroup. kHeld states that TileRules::hold() has been called.
template <bool kHeld, class Config>
__device__ __forceinline__ void custom_probabilities(float (&s)[32], const float (&lse)[16],
                                                     const TileRules<Config>& tile, float scale, int lane) {
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    if ((!kHeld || !CustomScoreCode::kHoldsAll) && i % kCustomTogether == 0) {
      __syncwarp();  // keeps the compiler from moving loads up, because each would need a register
      // For the same reason the lane is recomputed. Otherwise the 32 subscripts of a table would need a dozen more
      // registers.
      if constexpr (Score<Config>::kMayBeLowest) lane = static_cast<int>(recomputed(threadIdx.x) % kWarpgroup);
    }
    float unused;
    const CustomScoreOffset at = {accumulator_column(lane), backward_column(i), accumulator_row(lane),
                                  i / 2 % 2 * kRowHalf};
    const float value = tile.template custom_score<false, kHeld>(s[i] * scale, at, unused);
    s[i] = custom_probability<Config>(value, lse[backward_statistic(i)]);
  }
}

// Ranges of tile numbers for which some row does not see all keys of the warpgroup.
struct MaskedTiles {
  int before;  // tiles with a number below this one are masked
  int from;    // if the mask is a window, tiles with this number or a higher one are masked, too

  // first_key is the first key of the warpgroup, `number` is the number of query tile `tile`, and number_end is the
  // number of the head's last tile plus one.
  template <class Config>
  [[nodiscard]] static __device__ __forceinline__ MaskedTiles of(const Sm90BackwardArgs& args,
                                                                 const Sm90BackwardItem& item, int first_key, int tile,
                                                                 uint32 number, uint32 number_end) {
    const BackwardBand band = BackwardBand::of<Config>(args.options);
    const int first = first_key - item.offset();
    const int last = first + kWarpgroupRows - 1;
    if constexpr (has_block_mask<Config>() && Config::kMask != MaskKind::kFull) {
      // A block mask lists tiles in any order, so all tiles may be masked.
      return {static_cast<int>(number_end), static_cast<int>(number_end)};
    }
    MaskedTiles masked = {static_cast<int>(number), 0};
    if constexpr (Config::kMask != MaskKind::kFull) {
      const int first_row = last - band.right;  // first row whose window ends after all keys of the warpgroup
      masked.before += uniform((first_row <= 0 ? 0 : (first_row - 1) / kBackwardRows + 1) - tile);
    }
    if (uniform(last + item.offset() >= item.seqlen_k)) masked.before = static_cast<int>(number_end);
    if constexpr (Config::kMask == MaskKind::kWindow) {
      const int end_row = first + band.left + 1;  // first row whose window begins after the first key of the warpgroup
      masked.from = uniform(static_cast<int>(number) + (end_row <= 0 ? 0 : end_row / kBackwardRows) - tile);
    }
    return masked;
  }

  // Returns whether the tile is masked. number_end is the number of the head's last tile plus one. The last tile may
  // have rows beyond the sequence.
  template <class Config>
  [[nodiscard]] __device__ __forceinline__ bool has(uint32 number, uint32 number_end) const {
    bool is_masked = static_cast<int>(number) < before;
    if constexpr (Config::kMask == MaskKind::kWindow) is_masked |= static_cast<int>(number) >= from;
    if constexpr (Score<Config>::kIsCustom) is_masked |= number + 1 == number_end;
    return is_masked;
  }
};

// A position term lowers a score by slope |i + off - j| in log2 units, where i is the row, j the key, and off =
// seqlen_k - seqlen_q. If rows see no key beyond the diagonal, the term is linear in i and j. The contribution of the
// rows and of the thread's first key is then added to the rows' lse.
template <class Config>
struct BackwardPositionTerm {
  static constexpr bool kIsOn = Score<Config>::kAddsByPosition;
  static constexpr bool kIsLinear = Config::kMask != MaskKind::kFull;
  float slope;
  float distance;  // i + off - j for the thread's first row and first key

  [[nodiscard]] static __device__ __forceinline__ BackwardPositionTerm of(const ScoreRules<Config>& rules,
                                                                          const Sm90BackwardItem& item, int tile,
                                                                          int first_key, int thread) {
    const int key = first_key + accumulator_row(thread);
    const int row = tile * kBackwardRows + accumulator_column(thread);
    const auto distance = static_cast<float>(row + item.offset() - key);
    if constexpr (Config::kIsPart) return {rules.slope, distance + rules.distance_shift};
    return {rules.slope, distance};
  }

  __device__ __forceinline__ void add_to_rows(float (&lse)[16]) const {
#pragma unroll
    for (int i = 0; i < 32; i += i % 2 == 0 ? 1 : 3) {  // the loop visits the entries of the thread's first key
      float& row = lse[backward_statistic(i)];
      row = fmaf(slope, distance + static_cast<float>(backward_column(i)), row);
    }
  }

  // Returns log2 of p for entry i of the accumulator.
  [[nodiscard]] __device__ __forceinline__ float exponent(int i, float product, float scale, float lse) const {
    const int half = i / 2 % 2;  // selects one of the thread's two keys
    if (kIsOn && kIsLinear && half == 1) return fmaf(product, scale, slope * kRowHalf) - lse;
    const float without_term = fmaf(product, scale, -lse);
    if constexpr (!kIsOn || kIsLinear) return without_term;
    return fmaf(-slope, fabsf(distance + static_cast<float>(backward_column(i) - half * kRowHalf)), without_term);
  }
};

}  // namespace attend
