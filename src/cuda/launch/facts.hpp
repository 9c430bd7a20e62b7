// The compile-time facts that all kernel families share, and the table of options.
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

/// Options of a problem, one bit each. Score modifications have the lowest bits, in the order of ScoreMod.
namespace option {
[[nodiscard]] constexpr std::int32_t bit_of(ScoreMod mod) {
  return 1 << static_cast<int>(mod);
}

/// Returns the bits of the modifications for which `is_wanted` returns true.
template <class Predicate>
[[nodiscard]] constexpr std::int32_t bits_where(Predicate is_wanted) {
  std::int32_t bits = 0;
  for (int number = 0; number < kScoreMods; ++number) {
    const auto mod = static_cast<ScoreMod>(number);
    if (is_wanted(mod)) bits |= bit_of(mod);
  }
  return bits;
}

/// Returns the bits of the modifications that have a trait.
[[nodiscard]] constexpr std::int32_t bits_with(bool ScoreModTraits::*trait) {
  return bits_where([trait](ScoreMod mod) { return traits_of(mod).*trait; });
}

/// Returns the bits of the modifications whose traits are all supported by kernels.
[[nodiscard]] constexpr std::int32_t known_mods() {
  return bits_where([](ScoreMod mod) { return has_only(mod, kKnownTraits); });
}

/// Returns the bits of the modifications that change neither scores nor p. The loop over keys does not depend on them.
[[nodiscard]] constexpr std::int32_t bits_outside_loop() {
  return bits_where([](ScoreMod mod) { return traits_of(mod).changes_nothing(); });
}

constexpr std::int32_t kTransform = bits_with(&ScoreModTraits::transforms);
constexpr std::int32_t kBias = bits_with(&ScoreModTraits::adds_from_memory);
constexpr std::int32_t kAlibi = bits_with(&ScoreModTraits::adds_by_position);
constexpr std::int32_t kBoolMask = bits_with(&ScoreModTraits::masks_from_memory);
constexpr std::int32_t kDropout = bits_with(&ScoreModTraits::drops);
constexpr std::int32_t kEveryMod = (1 << kScoreMods) - 1;  ///< includes modifications that no family supports

constexpr std::int32_t kDeterministic = 1 << 16;  ///< backward only
constexpr std::int32_t kWindow = 1 << 17;         ///< a window other than the causal mask
constexpr std::int32_t kVarlen = 1 << 18;
constexpr std::int32_t kPhiloxState = 1 << 19;  ///< seed and offset of dropout are in device memory
/// All user-visible options, except modifications with a trait outside kKnownTraits.
constexpr std::int32_t kAll = known_mods() | kDeterministic | kWindow | kVarlen | kPhiloxState;
constexpr std::int32_t kPart = 1 << 20;                 ///< ALiBi or dropout that depends on Part::placement
constexpr std::int32_t kAddsToOutputs = 1 << 21;        ///< Part::adds_to_outputs
constexpr std::int32_t kHugeTransform = 1 << 22;        ///< a score divided by the cap may underflow
constexpr std::int32_t kCustomScore = 1 << 23;          ///< a custom score function
constexpr std::int32_t kBlockMask = 1 << 24;            ///< a caller-provided block mask
constexpr std::int32_t kCapturedGradients = 1 << 25;    ///< gradients of tensors that the custom score function reads
constexpr std::int32_t kBlockMap = 1 << 26;             ///< kernels that read the block mask as a map (block_map.hpp)
constexpr std::int32_t kRing = kPart | kAddsToOutputs;  ///< options that the parts of a ring require
}  // namespace option

/// One row of the table. A window has two rows, because a family may refuse either side.
struct Option {
  std::int32_t bit;
  const char* argument;  ///< name in refusals
  const char* constant;  ///< bool constant of the Config; null if no kernel reads it
  bool (*is_on)(const core::Problem&);
  core::LackText value = "given";   ///< text of the option's value in refusals
  core::LackText allowed = "none";  ///< text of the allowed values in refusals
};

[[nodiscard]] std::span<const Option> options();

/// Compile-time facts that all families share. Variants derive from this struct. Every member has 4 bytes, so the
/// struct has no padding.
struct Facts {
  ElementType element = ElementType::kF32;
  std::int32_t head_dim = 64;
  std::int32_t head_dim_v = 64;
  MaskKind mask = MaskKind::kFull;
  std::int32_t options = 0;  ///< options that are on; omits options that no kernel reads
  ElementType bias = ElementType::kF32;
  std::int32_t is_backward = 0;
  /// The scale was negative. Kernels that fold the scale into the exponent receive its magnitude.
  std::int32_t negate_scores = 0;
  std::int32_t aligned = 1;  ///< addresses, row lengths and strides of all tensors are multiples of 16 bytes
  /// Backward in 16 bits with dropout: no row sees more than one key (sole_key.cuh).
  std::int32_t sole_key = 0;

  /// kBlockMask: the lists are made from the boolean mask. See see_mask_as_blocks().
  std::int32_t lists_from_mask = 0;

  std::int32_t custom_score[4] = {};  ///< digest of Problem::custom_score
  /// Traits of the custom score for the choice of tiles, one bit each: custom_tile_traits().
  std::int32_t custom_traits = 0;
  /// An index or length is 2^21 or more: ATTEND_LONG_SEQUENCES.
  std::int32_t custom_is_long = 0;
  std::int32_t custom_may_be_huge = 0;  ///< CustomScore::may_be_huge

  [[nodiscard]] bool has(std::int32_t bits) const { return (options & bits) != 0; }

  /// Returns the options that the loop over keys, and therefore the tile, depends on.
  [[nodiscard]] std::int32_t loop_options() const { return options & ~option::bits_outside_loop(); }

  /// Converts a boolean mask to a block mask, for families that make tile lists from the boolean mask.
  void see_mask_as_blocks() {
    if (!has(option::kBoolMask)) return;
    options = (options & ~option::kBoolMask) | option::kBlockMask;
    lists_from_mask = 1;
  }

  /// Removes the custom score. Kernels that evaluate no score are the same for all score functions.
  void forget_custom_score() {
    options &= ~option::kCustomScore;
    std::fill(std::begin(custom_score), std::end(custom_score), 0);
    custom_traits = custom_is_long = custom_may_be_huge = 0;
  }

  /// Returns the traits of all active score modifications.
  [[nodiscard]] ScoreModTraits score() const;
  /// Returns whether score modifications need registers in addition to the scores.
  [[nodiscard]] bool has_rules() const { return !score().changes_nothing(); }

  /// Backward: returns whether the kernels correct the rounding of a large lse (kernels/attention/lse_rounding.cuh).
  [[nodiscard]] bool has_lse_rounding() const {
    return has(option::kBias | option::kAlibi | option::kCustomScore) && !has(option::kRing);
  }
};

/// @param folds_scale  the family's kernels require a scale > 0
[[nodiscard]] Facts facts_of(const core::Problem& p, bool folds_scale);

/// Returns the Config constants for the facts and for the options in `taken`, followed by `more`.
[[nodiscard]] std::vector<Constant> constants_of(const Facts& facts, std::int32_t taken,
                                                 std::initializer_list<Constant> more);

/// @throws Error (kInternal) for a type that no kernel supports. dtype_lack() and option_lack() refuse these types
///         earlier.
[[nodiscard]] ElementType element_of(DType dtype);

/// Returns whether the addresses, row lengths and strides of all tensors are multiples of `bytes`.
[[nodiscard]] bool is_aligned(const core::Problem& p, int bytes);

// Each of the following functions checks one kind of limit. It returns the first unsupported property, or nothing.

/// Refuses an option outside `taken`.
[[nodiscard]] std::optional<core::Lack> option_lack(const core::Problem& p, std::int32_t taken);
/// Refuses a score function together with an option in `others`.
[[nodiscard]] std::optional<core::Lack> custom_score_lack(const core::Problem& p, std::int32_t others);
/// Refuses ALiBi and dropout of a part that tensor core kernels do not support.
[[nodiscard]] std::optional<core::Lack> part_lack(const core::Problem& p);
/// Refuses a dtype of q outside `dtypes`, and a tensor whose dtype differs from q.
[[nodiscard]] std::optional<core::Lack> dtype_lack(const core::Problem& p, core::DTypes dtypes);
/// Refuses a head_dim outside `dims` or, if `dims` is empty, a head_dim above `most`.
[[nodiscard]] std::optional<core::Lack> head_dim_lack(const core::Problem& p, std::span<const int> dims, int most,
                                                      bool any_head_dim_v);
/// Refuses more than `most` query rows or keys, in a sequence or in memory.
[[nodiscard]] std::optional<core::Lack> length_lack(const core::Problem& p, std::int64_t most);
/// Refuses a tensor that is not aligned to 16 bytes.
[[nodiscard]] std::optional<core::Lack> alignment_lack(const core::Problem& p);

}  // namespace attend::cuda
