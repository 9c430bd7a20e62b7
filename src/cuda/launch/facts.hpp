// What the kernels of every family are compiled for: the facts of a problem, and the one table of the options.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>
#include <span>
#include <vector>

#include "core/lack.hpp"
#include "core/problem.hpp"
#include "cuda/jit/kernel_spec.hpp"
#include "kernels/attention/score_mods.cuh"
#include "kernels/common/config_enums.cuh"

namespace attend::cuda {

/// Options of a problem, one bit each. Modifications of scores have the first bits, in the order of ScoreMod.
namespace option {
[[nodiscard]] constexpr std::int32_t bit_of(ScoreMod mod) {
  return 1 << static_cast<int>(mod);
}

/// The modifications that `is_wanted` is true of.
template <class Predicate>
[[nodiscard]] constexpr std::int32_t bits_where(Predicate is_wanted) {
  std::int32_t bits = 0;
  for (int number = 0; number < kScoreMods; ++number) {
    const auto mod = static_cast<ScoreMod>(number);
    if (is_wanted(mod)) bits |= bit_of(mod);
  }
  return bits;
}

/// The modifications with a trait.
[[nodiscard]] constexpr std::int32_t bits_with(bool ScoreModTraits::*trait) {
  return bits_where([trait](ScoreMod mod) { return traits_of(mod).*trait; });
}

/// The modifications all of whose traits kernels know.
[[nodiscard]] constexpr std::int32_t known_mods() {
  return bits_where([](ScoreMod mod) { return has_only(mod, kKnownTraits); });
}

/// The modifications that change neither scores nor p: the loop over keys is as without them.
[[nodiscard]] constexpr std::int32_t bits_outside_loop() {
  return bits_where([](ScoreMod mod) { return traits_of(mod).changes_nothing(); });
}

constexpr std::int32_t kTransform = bits_with(&ScoreModTraits::transforms);
constexpr std::int32_t kBias = bits_with(&ScoreModTraits::adds_from_memory);
constexpr std::int32_t kAlibi = bits_with(&ScoreModTraits::adds_by_position);
constexpr std::int32_t kBoolMask = bits_with(&ScoreModTraits::masks_from_memory);
constexpr std::int32_t kDropout = bits_with(&ScoreModTraits::drops);
constexpr std::int32_t kEveryMod = (1 << kScoreMods) - 1;  ///< also those that no family takes

constexpr std::int32_t kDeterministic = 1 << 16;  ///< backward only
constexpr std::int32_t kWindow = 1 << 17;         ///< beyond the causal mask
constexpr std::int32_t kVarlen = 1 << 18;
constexpr std::int32_t kPhiloxState = 1 << 19;  ///< dropout's seed and offset are in memory
/// Those that users know, but for modifications with a trait that is not among kKnownTraits.
constexpr std::int32_t kAll = known_mods() | kDeterministic | kWindow | kVarlen | kPhiloxState;
constexpr std::int32_t kPart = 1 << 20;                 ///< ALiBi or dropout by Part::placement
constexpr std::int32_t kAddsToOutputs = 1 << 21;        ///< Part::adds_to_outputs
constexpr std::int32_t kHugeTransform = 1 << 22;        ///< a score divided by the cap may underflow
constexpr std::int32_t kCustomScore = 1 << 23;          ///< a modification of scores of the caller's own
constexpr std::int32_t kBlockMask = 1 << 24;            ///< a block mask of the caller's
constexpr std::int32_t kCapturedGradients = 1 << 25;    ///< of what the modification of the caller's own reads
constexpr std::int32_t kBlockMap = 1 << 26;             ///< kernels that read it as a map (block_map.hpp)
constexpr std::int32_t kRing = kPart | kAddsToOutputs;  ///< what the parts of a ring want
}  // namespace option

/// One row of the table. A window has two: either end may be what a family refuses.
struct Option {
  std::int32_t bit;
  const char* argument;  ///< in refusals
  const char* constant;  ///< of the Config, a bool; null: kernels do not need to know
  bool (*is_on)(const core::Problem&);
  core::LackText value = "given";   ///< in refusals
  core::LackText allowed = "none";  ///< likewise
};

[[nodiscard]] std::span<const Option> options();

/// Compile-time facts that all families share. Variants begin with them; 4 bytes each, so that no byte is padding.
struct Facts {
  ElementType element = ElementType::kF32;
  std::int32_t head_dim = 64;
  std::int32_t head_dim_v = 64;
  MaskKind mask = MaskKind::kFull;
  std::int32_t options = 0;  ///< those that are on, but for those that no kernel needs to know
  ElementType bias = ElementType::kF32;
  std::int32_t is_backward = 0;
  std::int32_t negate_scores = 0;  ///< the scale was negative: kernels that fold it into the exponent get its magnitude
  std::int32_t aligned = 1;        ///< addresses, row lengths and strides of all tensors are multiples of 16 bytes
  std::int32_t sole_key = 0;       ///< backward, 16 bits, with dropout: no row sees more than one key (sole_key.cuh)

  std::int32_t lists_from_mask = 0;  ///< kBlockMask: its lists are made of the boolean mask: see_mask_as_blocks()

  std::int32_t custom_score[4] = {};    ///< Problem::custom_score: its digest
  std::int32_t custom_traits = 0;       ///< and what it counts as for tiles, a bit each: custom_tile_traits()
  std::int32_t custom_is_long = 0;      ///< some index or length is 2^21 or more: ATTEND_LONG_SEQUENCES
  std::int32_t custom_may_be_huge = 0;  ///< CustomScore::may_be_huge

  [[nodiscard]] bool has(std::int32_t bits) const { return (options & bits) != 0; }

  /// The options that the loop over keys depends on, and with it the tile.
  [[nodiscard]] std::int32_t loop_options() const { return options & ~option::bits_outside_loop(); }

  /// For families that make lists of tiles of a boolean mask: to their kernels it is a block mask.
  void see_mask_as_blocks() {
    if (!has(option::kBoolMask)) return;
    options = (options & ~option::kBoolMask) | option::kBlockMask;
    lists_from_mask = 1;
  }

  /// Kernels that evaluate no score are the same for all functions.
  void forget_custom_score() {
    options &= ~option::kCustomScore;
    std::fill(std::begin(custom_score), std::end(custom_score), 0);
    custom_traits = custom_is_long = custom_may_be_huge = 0;
  }

  /// Traits of all modifications of scores that are on.
  [[nodiscard]] ScoreModTraits score() const;
  /// Do they want registers beside the scores?
  [[nodiscard]] bool has_rules() const { return !score().changes_nothing(); }

  /// Backward: whether the rounding of a large lse is made up for (kernels/attention/lse_rounding.cuh).
  [[nodiscard]] bool has_lse_rounding() const {
    return has(option::kBias | option::kAlibi | option::kCustomScore) && !has(option::kRing);
  }
};

/// @param folds_scale  the family's kernels want a scale > 0
[[nodiscard]] Facts facts_of(const core::Problem& p, bool folds_scale);

/// The constants of a Config that say the facts, with those of the options in `taken`, and `more` behind them.
[[nodiscard]] std::vector<Constant> constants_of(const Facts& facts, std::int32_t taken,
                                                 std::initializer_list<Constant> more);

/// @throws Error (kInternal) for a type that no kernel takes; dtype_lack() and option_lack() refuse those.
[[nodiscard]] ElementType element_of(DType dtype);

/// Are the addresses, row lengths and strides of all tensors of the problem multiples of `bytes`?
[[nodiscard]] bool is_aligned(const core::Problem& p, int bytes);

// Each says the first thing that a family lacks, of one kind, or nothing.

/// An option outside `taken`.
[[nodiscard]] std::optional<core::Lack> option_lack(const core::Problem& p, std::int32_t taken);
/// What comes with a score function of `others`.
[[nodiscard]] std::optional<core::Lack> custom_score_lack(const core::Problem& p, std::int32_t others);
/// What kernels on tensor cores lack for ALiBi and dropout of a part of a larger problem.
[[nodiscard]] std::optional<core::Lack> part_lack(const core::Problem& p);
/// A dtype outside `dtypes`, of q, or of a tensor that differs from q.
[[nodiscard]] std::optional<core::Lack> dtype_lack(const core::Problem& p, core::DTypes dtypes);
/// A head_dim that is none of `dims`, or, where that is empty, above `most`.
[[nodiscard]] std::optional<core::Lack> head_dim_lack(const core::Problem& p, std::span<const int> dims, int most,
                                                      bool any_head_dim_v);
/// More rows or keys, of a sequence or in memory, than `most`.
[[nodiscard]] std::optional<core::Lack> length_lack(const core::Problem& p, std::int64_t most);
/// A tensor that is not aligned to 16 bytes.
[[nodiscard]] std::optional<core::Lack> alignment_lack(const core::Problem& p);

}  // namespace attend::cuda
