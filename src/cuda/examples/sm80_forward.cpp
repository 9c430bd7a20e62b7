// The examples of sm80_forward.
#include <algorithm>
#include <span>

#include "cuda/examples/family_examples.hpp"
#include "cuda/launch/sm80_forward_variant.hpp"

namespace attend::cuda {
namespace {

using enum ElementType;
using enum MaskKind;
using option::kAlibi, option::kBias, option::kBoolMask, option::kDropout, option::kPhiloxState, option::kTransform,
    option::kVarlen;

constexpr std::int32_t kEvery = kTransform | kAlibi | kBias | kBoolMask | kDropout;

enum class Tile { kTall, kShort, kLow, kLong };

struct Case {
  ElementType element;
  MaskKind mask = kFull;
  std::int32_t options = 0;
  ElementType bias = kF32;
  bool negate_scores = false;
  /// Alignment of all tensors in bytes. With the value 2, head_dim is reduced by 1 and head_dim_v by 3.
  int copy_bytes = 16;
};

/// A group of examples: each case in combination with each head_dim, all with the same tile.
struct Group {
  std::span<const HeadDims> head_dims;
  Tile tile;
  std::span<const Case> cases;
};

// These cases cover both dtypes, all masks and all values of copy_bytes.
constexpr Case kEveryCopy[] = {
    {.element = kBF16},
    {.element = kF16, .mask = kCausal, .negate_scores = true},
    {.element = kBF16, .mask = kWindow, .options = kEvery, .negate_scores = true},
    {.element = kBF16, .mask = kWindow, .options = kBias, .bias = kF16, .copy_bytes = 4},
    {.element = kF16, .copy_bytes = 2},
};
// In these cases, each option occurs alone, and all options occur together.
constexpr Case kEveryOption[] = {
    {.element = kBF16, .mask = kCausal},
    {.element = kF16, .mask = kWindow},
    {.element = kBF16, .mask = kCausal, .options = kTransform, .bias = kBF16},
    {.element = kBF16, .mask = kCausal, .options = kAlibi, .bias = kBF16},
    {.element = kBF16, .options = kBias, .bias = kBF16},
    {.element = kBF16, .mask = kCausal, .options = kBoolMask, .bias = kBF16},
    {.element = kBF16, .mask = kCausal, .options = kDropout, .bias = kBF16},
    {.element = kBF16, .mask = kCausal, .options = kVarlen, .bias = kBF16},
    {.element = kF16, .mask = kCausal, .options = kEvery, .bias = kF16, .copy_bytes = 4},
    {.element = kF16, .mask = kWindow, .options = kDropout | kPhiloxState},
};
constexpr Case kLongSums[] = {
    {.element = kF16, .mask = kCausal},
    {.element = kF16, .mask = kCausal, .options = kEvery},
};
constexpr Case kTransformAlone[] = {{.element = kBF16, .mask = kCausal, .options = kTransform}};
constexpr Case kMaskAlone[] = {{.element = kBF16, .mask = kCausal, .options = kBoolMask}};
constexpr Case kShortSequences[] = {
    {.element = kBF16, .mask = kCausal},
    {.element = kF16, .mask = kCausal, .options = kVarlen, .negate_scores = true, .copy_bytes = 2},
};
constexpr Case kCausalAlone[] = {{.element = kBF16, .mask = kCausal}};
constexpr Case kFullAlone[] = {{.element = kF16}};
constexpr Case kPackedAlone[] = {{.element = kBF16, .mask = kCausal, .options = kVarlen}};

constexpr HeadDims k8[] = {8}, k64[] = {64}, k128[] = {128}, k192[] = {192}, k256[] = {256}, k512[] = {512};
constexpr HeadDims kPaddedTo128Or192[] = {96, {192, 128}}, kInParts[] = {{40, 304}};

// There is no group with low tiles for 64 or 192 columns, because the groups for 128 and 256 columns cover them.
constexpr Group kGroups[] = {
    {.head_dims = k64, .tile = Tile::kTall, .cases = kEveryCopy},
    {.head_dims = k128, .tile = Tile::kTall, .cases = kEveryCopy},
    {.head_dims = k128, .tile = Tile::kLow, .cases = kEveryCopy},
    {.head_dims = k192, .tile = Tile::kTall, .cases = kEveryCopy},
    {.head_dims = k256, .tile = Tile::kTall, .cases = kEveryCopy},
    {.head_dims = k256, .tile = Tile::kLow, .cases = kEveryCopy},
    {.head_dims = k512, .tile = Tile::kTall, .cases = kEveryCopy},
    {.head_dims = k512, .tile = Tile::kLow, .cases = kEveryCopy},
    {.head_dims = k128, .tile = Tile::kTall, .cases = kEveryOption},
    {.head_dims = k128, .tile = Tile::kLong, .cases = kLongSums},
    {.head_dims = k256, .tile = Tile::kTall, .cases = kEveryOption},
    {.head_dims = k256, .tile = Tile::kLong, .cases = kLongSums},
    {.head_dims = k64, .tile = Tile::kTall, .cases = kTransformAlone},
    {.head_dims = k64, .tile = Tile::kLow, .cases = kMaskAlone},
    {.head_dims = k512, .tile = Tile::kTall, .cases = kTransformAlone},
    {.head_dims = k512, .tile = Tile::kLow, .cases = kMaskAlone},
    {.head_dims = k64, .tile = Tile::kShort, .cases = kShortSequences},
    {.head_dims = k256, .tile = Tile::kShort, .cases = kShortSequences},
    {.head_dims = kPaddedTo128Or192, .tile = Tile::kTall, .cases = kCausalAlone},
    {.head_dims = kInParts, .tile = Tile::kTall, .cases = kFullAlone},
    {.head_dims = k8, .tile = Tile::kTall, .cases = kPackedAlone},
};

Facts facts_of(const Case& c, HeadDims head_dim, Tile tile) {
  const bool is_odd = c.copy_bytes == 2;
  return {.element = c.element,
          .head_dim = head_dim.qk - (is_odd ? 1 : 0),
          .head_dim_v = head_dim.v - (is_odd ? 3 : 0),
          .mask = c.mask,
          .options = c.options,
          .bias = c.bias,
          .negate_scores = c.negate_scores,
          .aligned = c.copy_bytes == 16 || tile == Tile::kShort};  // the kernels of this family do not read `aligned`
}

/// Returns the tile, or nothing if the family has no such tile for these parameters.
std::optional<Sm80ForwardTile> tile_of(const Facts& facts, Tile tile, int max_smem) {
  switch (tile) {
    case Tile::kTall:
      return sm80_tall_tile(facts, max_smem);
    case Tile::kShort:
      return sm80_short_tile(facts, max_smem);
    case Tile::kLow:
      return sm80_low_tile(facts, max_smem);
    case Tile::kLong:
      return sm80_long_tile(facts, max_smem);
  }
  return std::nullopt;
}

}  // namespace

std::vector<Variant> sm80_forward_examples(const Arch& arch) {
  std::vector<Variant> variants;
  const auto add = [&](const Case& c, HeadDims head_dim, Tile tile) {
    const Facts facts = facts_of(c, head_dim, tile);
    const auto its_tile = tile_of(facts, tile, arch.max_smem_per_block);
    if (!its_tile) return;
    const Variant v = sm80_forward_variant(facts, c.copy_bytes, *its_tile);
    if (std::find(variants.begin(), variants.end(), v) == variants.end()) variants.push_back(v);
  };
  for (const Group& group : kGroups) {
    for (const HeadDims head_dim : group.head_dims) {
      for (const Case& c : group.cases) add(c, head_dim, group.tile);
    }
  }
  return variants;
}

}  // namespace attend::cuda
