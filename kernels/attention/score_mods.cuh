// Score modifications: what happens to a score between q.k and p. Each is described once, for host and device.
//
// A kernel does not ask which modifications are on. It asks Score<Config> for a trait, such as "adds a term that is
// read from memory", and so do the host's predicates. A new modification is a row of traits_of() and a line of Score.
#pragma once

#include "../common/args.cuh"
#include "../common/portable.cuh"
#include "custom_score.cuh"

namespace attend {

// In the order in which they are applied.
enum class ScoreMod { kSoftcap, kBias, kAlibi, kBoolMask, kDropout, kSinks };
constexpr int kScoreMods = 6;

struct ScoreModTraits {
  bool transforms = false;         // s = f(scale q.k), with a derivative other than 1
  bool adds_from_memory = false;   // adds a term that is read for each row and key; it may be as low as -FLT_MAX
  bool adds_by_position = false;   // adds a term that follows from the positions of row and key
  bool masks_from_memory = false;  // reads for each row and key whether the row sees the key
  bool drops = false;              // sets p to 0 at random, after the softmax's sum
  bool adds_to_sum = false;        // adds the exponential of a logit of the head to the softmax's sum, once a row

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
  // Is a score the product q.k times a factor, but for what is masked?
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr bool keeps_products() const { return !transforms && !adds(); }
  // Does any score differ from the product, or is any masked by more than lengths and window?
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr bool changes_scores() const {
    return !keeps_products() || masks_from_memory;
  }
  // Neither scores nor p before the softmax's sum differ from those of plain attention.
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr bool changes_nothing() const { return !changes_scores() && !drops; }
};

// Traits as a number, a bit each, and back.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int bits_of(const ScoreModTraits& traits) {
  return traits.transforms | traits.adds_from_memory << 1 | traits.adds_by_position << 2 |
         traits.masks_from_memory << 3 | traits.drops << 4 | traits.adds_to_sum << 5;
}
[[nodiscard]] ATTEND_HOST_DEVICE constexpr ScoreModTraits traits_of_bits(int bits) {
  return {(bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0, (bits & 8) != 0, (bits & 16) != 0, (bits & 32) != 0};
}

// The traits that the kernels of families know. A modification with another one is refused until it is added here.
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

// Does a modification have no trait but these?
[[nodiscard]] ATTEND_HOST_DEVICE constexpr bool has_only(ScoreMod mod, const ScoreModTraits& traits) {
  return (bits_of(traits_of(mod)) & ~bits_of(traits)) == 0;
}

[[nodiscard]] ATTEND_HOST_DEVICE constexpr ScoreModTraits traits_if(bool is_on, ScoreMod mod) {
  return is_on ? traits_of(mod) : ScoreModTraits{};
}

// Has a kernel's Config a modification of the caller's own? Families that refuse those have no constant for it.
template <class Config>
[[nodiscard]] ATTEND_HOST_DEVICE constexpr bool has_custom_score() {
  if constexpr (requires { Config::kHasCustomScore; }) return Config::kHasCustomScore;
  return false;
}

// For the choice of tiles, what the caller's own modification counts as: it wants registers as a term by position does,
// and in the backward pass as a transform does, if its derivative is not 1.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr ScoreModTraits custom_tile_traits(bool has_slope) {
  return {.transforms = has_slope, .adds_by_position = true};
}

// The traits of all modifications that a kernel's Config has on. Those of the caller's own have names apart: kernels
// evaluate it where all rules of scores are applied, and know no more of it.
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
  static constexpr bool kHasSlopes = kTransforms || kIsCustomWithSlope;  // a derivative by scale q.k other than 1
  static constexpr bool kKeepsProducts = kTraits.keeps_products() && !kIsCustom;
  static constexpr bool kChangesScores = kTraits.changes_scores() || kIsCustom;
  static constexpr bool kOnlyTransforms = kTransforms && !kAdds && !kMasksFromMemory && !kIsCustom;
  static constexpr bool kOnlyAddsFromMemory =
      kAddsFromMemory && !kAddsByPosition && !kTransforms && !kMasksFromMemory && !kIsCustom;
  static constexpr bool kDrops = kTraits.drops;
  static constexpr bool kAddsToSum = kTraits.adds_to_sum;
};

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)

// Factor of entries of p that are not dropped.
template <class Config>
[[nodiscard]] __device__ __forceinline__ float kept_scale(const OptionArgs& options) {
  return Score<Config>::kDrops ? options.dropout_scale : 1.0f;
}

#endif

}  // namespace attend
