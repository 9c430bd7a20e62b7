// The compile-time parameters of kernels that all families share (Facts), and the table of options. An option is a
// feature beyond dense, unmasked attention. Some families do not support some options. A Config is the struct of
// compile-time constants with which a kernel template is instantiated.
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

/// The options of a problem as a bit set. Score modifications use the lowest bits, in the order of ScoreMod.
namespace option {
[[nodiscard]] constexpr std::int32_t bit_of(ScoreMod mod) {
  return 1 << static_cast<int>(mod);
}

/// Returns the bits of all score modifications for which `is_wanted` returns true.
template <class Predicate>
[[nodiscard]] constexpr std::int32_t bits_where(Predicate is_wanted) {
  std::int32_t bits = 0;
  for (int number = 0; number < kScoreMods; ++number) {
    const auto mod = static_cast<ScoreMod>(number);
    if (is_wanted(mod)) bits |= bit_of(mod);
  }
  return bits;
}

/// Returns the bits of all score modifications that have the given trait. A trait is one effect of a modification, for
/// example that it adds a term to the scores (kernels/attention/score_mods.cuh).
[[nodiscard]] constexpr std::int32_t bits_with(bool ScoreModTraits::*trait) {
  return bits_where([trait](ScoreMod mod) { return traits_of(mod).*trait; });
}

/// Returns the bits of all score modifications that the kernels support. All traits of such a modification are in
/// kKnownTraits.
[[nodiscard]] constexpr std::int32_t known_mods() {
  return bits_where([](ScoreMod mod) { return has_only(mod, kKnownTraits); });
}

/// Returns the bits of the score modifications that change neither the scores nor p, such as sinks. The loop over key
/// tiles is independent of them.
[[nodiscard]] constexpr std::int32_t bits_outside_loop() {
  return bits_where([](ScoreMod mod) { return traits_of(mod).changes_nothing(); });
}

constexpr std::int32_t kTransform = bits_with(&ScoreModTraits::transforms);
constexpr std::int32_t kBias = bits_with(&ScoreModTraits::adds_from_memory);
constexpr std::int32_t kAlibi = bits_with(&ScoreModTraits::adds_by_position);
constexpr std::int32_t kBoolMask = bits_with(&ScoreModTraits::masks_from_memory);
constexpr std::int32_t kDropout = bits_with(&ScoreModTraits::drops);
constexpr std::int32_t kEveryMod = (1 << kScoreMods) - 1;  ///< all score modifications, including unsupported ones

constexpr std::int32_t kDeterministic = 1 << 16;  ///< deterministic gradients, requested only in backward passes
constexpr std::int32_t kWindow = 1 << 17;         ///< a sliding window; a causal mask alone does not set this bit
constexpr std::int32_t kVarlen = 1 << 18;
constexpr std::int32_t kPhiloxState = 1 << 19;  ///< the seed and the offset of dropout are in device memory
/// All options that a user can request, except score modifications that no kernel supports.
constexpr std::int32_t kAll = known_mods() | kDeterministic | kWindow | kVarlen | kPhiloxState;
/// ALiBi or dropout in one step of ring attention, whose positions depend on Part::placement.
constexpr std::int32_t kPart = 1 << 20;
/// One step of ring attention that adds to existing outputs: Part::adds_to_outputs.
constexpr std::int32_t kAddsToOutputs = 1 << 21;
constexpr std::int32_t kHugeTransform = 1 << 22;  ///< a tanh cap so large that score / cap may underflow
constexpr std::int32_t kCustomScore = 1 << 23;    ///< a custom score function
constexpr std::int32_t kBlockMask = 1 << 24;      ///< a caller-provided block mask
/// Gradients of the tensors that the custom score function reads.
constexpr std::int32_t kCapturedGradients = 1 << 25;
constexpr std::int32_t kBlockMap = 1 << 26;  ///< kernels look up tiles in a map of the block mask (block_map.hpp)
constexpr std::int32_t kRing = kPart | kAddsToOutputs;  ///< options that every step of ring attention requires
}  // namespace option

/// One row of the table of options. A window has two rows, because a family may refuse the left or the right limit.
struct Option {
  std::int32_t bit;
  const char* argument;  ///< name of the argument in error messages
  const char* constant;  ///< name of the bool constant in the Config; null if no kernel reads it
  bool (*is_on)(const core::Problem&);
  core::LackText value = "given";   ///< text of the option's value in error messages
  core::LackText allowed = "none";  ///< text of the allowed values in error messages
};

[[nodiscard]] std::span<const Option> options();

/// Compile-time parameters that all families share. The variant struct of each family derives from this struct. Every
/// member has 4 bytes, so the struct has no padding.
struct Facts {
  ElementType element = ElementType::kF32;
  std::int32_t head_dim = 64;
  std::int32_t head_dim_v = 64;
  MaskKind mask = MaskKind::kFull;
  std::int32_t options = 0;  ///< bits of the active options that kernels read
  ElementType bias = ElementType::kF32;
  std::int32_t is_backward = 0;
  /// Whether the softmax scale was negative. Kernels that fold the scale into the exponent receive its absolute value
  /// and negate the scores.
  std::int32_t negate_scores = 0;
  /// Whether the addresses, row lengths and strides of all tensors are multiples of 16 bytes.
  std::int32_t aligned = 1;
  /// Whether no row sees more than one key. Set only for a 16-bit backward pass with dropout (sole_key.cuh).
  std::int32_t sole_key = 0;

  /// Whether kernels build the tile lists from a boolean mask. If so, the bit kBlockMask is set too. See
  /// see_mask_as_blocks().
  std::int32_t lists_from_mask = 0;

  std::int32_t custom_score[4] = {};  ///< digest of Problem::custom_score
  /// Result of custom_tile_traits(): the traits of the custom score on which the choice of tiles depends, with one bit
  /// for each trait.
  std::int32_t custom_traits = 0;
  /// Whether an index or a length is 2^21 or more. Defines ATTEND_LONG_SEQUENCES.
  std::int32_t custom_is_long = 0;
  std::int32_t custom_may_be_huge = 0;  ///< whether CustomScore::may_be_huge is set

  [[nodiscard]] bool has(std::int32_t bits) const { return (options & bits) != 0; }

  /// Returns the active options that change the loop over key tiles. Only these options affect the choice of a tile.
  [[nodiscard]] std::int32_t loop_options() const { return options & ~option::bits_outside_loop(); }

  /// Replaces the boolean mask by a block mask, for families whose first kernels make tile lists from a boolean mask.
  void see_mask_as_blocks() {
    if (!has(option::kBoolMask)) return;
    options = (options & ~option::kBoolMask) | option::kBlockMask;
    lists_from_mask = 1;
  }

  /// Removes the custom score. Kernels that evaluate no scores are then shared by all score functions.
  void forget_custom_score() {
    options &= ~option::kCustomScore;
    std::fill(std::begin(custom_score), std::end(custom_score), 0);
    custom_traits = custom_is_long = custom_may_be_huge = 0;
  }

  /// Returns the union of the traits of all active score modifications.
  [[nodiscard]] ScoreModTraits score() const;
  /// Returns whether score modifications need registers in addition to those that hold the scores.
  [[nodiscard]] bool has_rules() const { return !score().changes_nothing(); }

  /// Returns whether the kernels of a backward pass correct the rounding error of an lse with a large absolute value
  /// (kernels/attention/lse_rounding.cuh).
  [[nodiscard]] bool has_lse_rounding() const {
    return has(option::kBias | option::kAlibi | option::kCustomScore) && !has(option::kRing);
  }
};

/// Returns the compile-time parameters for a problem.
/// @param folds_scale  whether the family's kernels fold the scale into the exponent, which requires a scale > 0
[[nodiscard]] Facts facts_of(const core::Problem& p, bool folds_scale);

/// Returns the Config constants for `facts` and for the options in `taken`, followed by the constants in `more`.
[[nodiscard]] std::vector<Constant> constants_of(const Facts& facts, std::int32_t taken,
                                                 std::initializer_list<Constant> more);

/// Converts a dtype to the element type of a kernel.
/// @throws Error (kInternal) if no kernel supports the dtype. dtype_lack() and option_lack() refuse such dtypes
///         earlier.
[[nodiscard]] ElementType element_of(DType dtype);

/// Returns whether the addresses, row lengths and strides of all tensors are multiples of `bytes`.
[[nodiscard]] bool is_aligned(const core::Problem& p, int bytes);

// Each of the following functions checks one limit of a family. It returns the first unsupported property of the
// problem, or nothing.

/// Refuses an active option that is not in `taken`.
[[nodiscard]] std::optional<core::Lack> option_lack(const core::Problem& p, std::int32_t taken);
/// Refuses a custom score function if an option in `others` is active too.
[[nodiscard]] std::optional<core::Lack> custom_score_lack(const core::Problem& p, std::int32_t others);
/// Refuses ALiBi or dropout in a step of ring attention if tensor core kernels do not support the positions of this
/// step.
[[nodiscard]] std::optional<core::Lack> part_lack(const core::Problem& p);
/// Refuses a dtype of q that is not in `dtypes`, and tensors whose dtype differs from that of q.
[[nodiscard]] std::optional<core::Lack> dtype_lack(const core::Problem& p, core::DTypes dtypes);
/// Refuses a head_dim that is not in `dims`. If `dims` is empty, refuses a head_dim above `most`.
[[nodiscard]] std::optional<core::Lack> head_dim_lack(const core::Problem& p, std::span<const int> dims, int most,
                                                      bool any_head_dim_v);
/// Refuses more than `most` query rows or keys. The limit applies to each sequence and to the complete tensors.
[[nodiscard]] std::optional<core::Lack> length_lack(const core::Problem& p, std::int64_t most);
/// Refuses a tensor whose address, row length or stride is not a multiple of 16 bytes.
[[nodiscard]] std::optional<core::Lack> alignment_lack(const core::Problem& p);

}  // namespace attend::cuda
