// Score modifications are the steps between q.k and p. Each modification is described once, for host and device.
//
// Kernels do not query which modifications are enabled. They query Score<Config> for a trait, for example whether a
// term is read from memory and added. The host's predicates do the same. A new modification needs a row in traits_of()
// and a line in Score.
#pragma once

#include "../common/args.cuh"
#include "../common/portable.cuh"
#include "custom_score.cuh"

namespace attend {

// The modifications, in the order in which they are applied.
enum class ScoreMod { kSoftcap, kBias, kAlibi, kBoolMask, kDropout, kSinks };
constexpr int kScoreMods = 6;

struct ScoreModTraits {
  bool transforms = false;         // s = f(scale q.k), with a derivative that may differ from 1
  bool adds_from_memory = false;   // adds a term that is read from memory for each row and key. The term may be as low
                                   // as -FLT_MAX
  bool adds_by_position = false;   // adds a term computed from the positions of row and key
  bool masks_from_memory = false;  // reads from memory, for each row and key, whether the row sees the key
  bool drops = false;              // sets p to 0 at random, after the row sum is computed
  bool adds_to_sum = false;        // adds the exponential of a logit of the head to each row sum

  [[nodiscard]] ATTEND_HOST_DEVICE constexpr ScoreModTraits operator|(const ScoreModTraits& other) const {
    return {transforms || other.transforms,
            adds_from_memory || other.adds_from_memory,
            adds_by_position || other.adds_by_position,
            masks_from_memory || other.masks_from_memory,
            drops || other.drops,
            adds_to_sum || other.adds_to_sum};
  }

  [[nodiscard]] ATTEND_HOST_DEVICE constexpr bool adds() const { return adds_from_memory || adds_by_position; }
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr bool reads_memory() const { return adds_from_memory || masks_from_memory; }
  // Returns whether every unmasked score is q.k times a constant factor.
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr bool keeps_products() const { return !transforms && !adds(); }
  // Returns whether a modification changes scores or hides them. Lengths and windows do not count as modifications.
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr bool changes_scores() const {
    return !keeps_products() || masks_from_memory;
  }
  // Returns whether scores and p are those of unmodified attention. The row sum may still differ because of
  // adds_to_sum.
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr bool changes_nothing() const { return !changes_scores() && !drops; }
};

// bits_of() packs traits into a number with one bit for each trait. traits_of_bits() unpacks them.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int bits_of(const ScoreModTraits& traits) {
  return traits.transforms | traits.adds_from_memory << 1 | traits.adds_by_position << 2 |
         traits.masks_from_memory << 3 | traits.drops << 4 | traits.adds_to_sum << 5;
}
[[nodiscard]] ATTEND_HOST_DEVICE constexpr ScoreModTraits traits_of_bits(int bits) {
  return {(bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0, (bits & 8) != 0, (bits & 16) != 0, (bits & 32) != 0};
}

// The traits that kernels support. A modification with another trait is refused until the trait is added here.
constexpr ScoreModTraits kKnownTraits = {.transforms = true,
                                         .adds_from_memory = true,
                                         .adds_by_position = true,
                                         .masks_from_memory = true,
                                         .drops = true,
                                         .adds_to_sum = true};

[[nodiscard]] ATTEND_HOST_DEVICE constexpr ScoreModTraits traits_of(ScoreMod mod) {
  switch (mod) {
    case ScoreMod::kSoftcap:
      return {.transforms = true};
    case ScoreMod::kBias:
      return {.adds_from_memory = true};
    case ScoreMod::kAlibi:
      return {.adds_by_position = true};
    case ScoreMod::kBoolMask:
      return {.masks_from_memory = true};
    case ScoreMod::kDropout:
      return {.drops = true};
    case ScoreMod::kSinks:
      return {.adds_to_sum = true};
  }
  return {};
}

// Returns whether a modification has no traits other than `traits`.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr bool has_only(ScoreMod mod, const ScoreModTraits& traits) {
  return (bits_of(traits_of(mod)) & ~bits_of(traits)) == 0;
}

[[nodiscard]] ATTEND_HOST_DEVICE constexpr ScoreModTraits traits_if(bool is_on, ScoreMod mod) {
  return is_on ? traits_of(mod) : ScoreModTraits{};
}

// Returns whether a kernel's Config has a custom score function. Kernel families that refuse custom score functions do
// not define the constant.
template <class Config>
[[nodiscard]] ATTEND_HOST_DEVICE constexpr bool has_custom_score() {
  if constexpr (requires { Config::kHasCustomScore; }) return Config::kHasCustomScore;
  return false;
}

// Returns the traits that represent a custom score function when the host chooses tile sizes. The function needs about
// as many registers as a term computed from positions. If its derivative may differ from 1, the backward pass also
// needs the registers of a transform.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr ScoreModTraits custom_tile_traits(bool has_slope) {
  return {.transforms = has_slope, .adds_by_position = true};
}

// The traits of all modifications that a kernel's Config enables. Custom score functions are described by separate
// constants. Kernels evaluate such functions together with the score rules, and are otherwise independent of them.
template <class Config>
struct Score {
  static constexpr ScoreModTraits kTraits =
      traits_if(Config::kHasTransform, ScoreMod::kSoftcap) | traits_if(Config::kHasBias, ScoreMod::kBias) |
      traits_if(Config::kHasAlibi, ScoreMod::kAlibi) | traits_if(Config::kHasBoolMask, ScoreMod::kBoolMask) |
      traits_if(Config::kHasDropout, ScoreMod::kDropout) | traits_if(Config::kHasSinks, ScoreMod::kSinks);
  static constexpr bool kIsCustom = has_custom_score<Config>();
  static constexpr bool kIsCustomWithSlope = kIsCustom && CustomScoreCode::kHasSlope;
  static constexpr bool kMayBeLowest = kIsCustom && CustomScoreCode::kMayBeLowest;
  static constexpr ScoreModTraits kTileTraits =
      kTraits | (kIsCustom ? custom_tile_traits(kIsCustomWithSlope) : ScoreModTraits{});
  static constexpr bool kTransforms = kTraits.transforms;
  static constexpr bool kAddsFromMemory = kTraits.adds_from_memory;
  static constexpr bool kAddsByPosition = kTraits.adds_by_position;
  static constexpr bool kAdds = kTraits.adds();
  static constexpr bool kMasksFromMemory = kTraits.masks_from_memory;
  static constexpr bool kReadsMemory = kTraits.reads_memory();
  static constexpr bool kHasSlopes = kTransforms || kIsCustomWithSlope;  // d score / d (scale q.k) may differ from 1
  static constexpr bool kKeepsProducts = kTraits.keeps_products() && !kIsCustom;
  static constexpr bool kChangesScores = kTraits.changes_scores() || kIsCustom;
  static constexpr bool kOnlyTransforms = kTransforms && !kAdds && !kMasksFromMemory && !kIsCustom;
  static constexpr bool kOnlyAddsFromMemory =
      kAddsFromMemory && !kAddsByPosition && !kTransforms && !kMasksFromMemory && !kIsCustom;
  static constexpr bool kDrops = kTraits.drops;
  static constexpr bool kAddsToSum = kTraits.adds_to_sum;
};

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)

// Returns the factor by which entries of p that are not dropped are multiplied.
template <class Config>
[[nodiscard]] __device__ __forceinline__ float kept_scale(const OptionArgs& options) {
  return Score<Config>::kDrops ? options.dropout_scale : 1.0f;
}

#endif

}  // namespace attend
