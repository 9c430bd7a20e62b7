// The examples of sm90_forward.
#include <algorithm>
#include <span>

#include "cuda/examples/family_examples.hpp"
#include "cuda/launch/sm90_forward_variant.hpp"

namespace attend::cuda {
namespace {

using enum ElementType;
using enum MaskKind;
using option::kAddsToOutputs, option::kAlibi, option::kBias, option::kBoolMask, option::kDropout, option::kPhiloxState,
    option::kRing, option::kTransform, option::kVarlen;

constexpr std::int32_t kAllButDropout = kTransform | kAlibi | kBias | kBoolMask;
constexpr std::int32_t kEvery = kAllButDropout | kDropout;

struct Case {
  ElementType element;
  MaskKind mask = kFull;
  /// Options of the case. If a bias is active, head_dims above kSm90MostHeadDimWithBias are skipped.
  std::int32_t options = 0;
  ElementType bias = kF32;
  bool negate_scores = false;
  std::int64_t seqlen_k = 512;
  bool is_low = false;      ///< whether to use the tile with one consumer warpgroup
  bool puts_aside = false;  ///< whether o is accumulated in several partial sums, because there are very many keys
  bool splits_keys = false;
  bool maps_bias = true;  ///< whether the bias has a tensor map
};

/// A group of examples: each case in combination with each head_dim.
struct Group {
  std::span<const HeadDims> head_dims;
  std::span<const Case> cases;
};

constexpr Case kEveryMask[] = {
    {.element = kBF16},
    {.element = kBF16, .mask = kCausal},
    {.element = kBF16, .mask = kCausal, .negate_scores = true},
    {.element = kF16, .mask = kWindow},
};
constexpr Case kManyKeys[] = {
    {.element = kBF16, .seqlen_k = 16384},
    {.element = kBF16, .mask = kCausal, .seqlen_k = 16384},
    {.element = kF16, .mask = kCausal, .negate_scores = true, .seqlen_k = 16384},
};
constexpr Case kWiderThanV[] = {
    {.element = kBF16, .mask = kCausal},
    {.element = kF16, .mask = kWindow},
    {.element = kBF16, .negate_scores = true},
};
constexpr Case kLongSums[] = {{.element = kF16, .mask = kCausal, .seqlen_k = 1 << 20, .puts_aside = true}};
constexpr Case kFullAlone[] = {{.element = kF16}};
// Cases for steps of ring attention, and for dropout whose seed is in device memory.
constexpr Case kParts[] = {
    {.element = kBF16, .options = kAddsToOutputs, .seqlen_k = 16384},
    {.element = kBF16, .mask = kCausal, .options = kAddsToOutputs, .seqlen_k = 16384},
    {.element = kF16, .mask = kWindow, .options = kRing | kAlibi},
    {.element = kBF16, .options = kRing | kDropout},
    {.element = kBF16, .mask = kCausal, .options = kDropout | kPhiloxState},
    {.element = kF16, .mask = kWindow, .options = kDropout | kPhiloxState | kVarlen},
};
constexpr Case kPartsWithRules[] = {
    {.element = kBF16, .mask = kCausal, .options = kAddsToOutputs | kTransform},
    {.element = kBF16, .mask = kCausal, .options = kAddsToOutputs | kBias, .bias = kBF16},
    {.element = kBF16, .options = kBias, .bias = kBF16, .seqlen_k = 16384, .maps_bias = false},
    {.element = kF16, .mask = kWindow, .options = kRing | kEvery},
};
// Cases with few query rows, then cases with each option alone and with all options together.
constexpr Case kEveryOption[] = {
    {.element = kBF16, .is_low = true},
    {.element = kBF16, .mask = kCausal, .negate_scores = true, .is_low = true},
    {.element = kF16, .options = kVarlen, .is_low = true},
    {.element = kBF16, .mask = kWindow, .options = kTransform | kAlibi | kDropout, .is_low = true},
    {.element = kBF16,
     .mask = kWindow,
     .options = kTransform | kAlibi | kDropout,
     .negate_scores = true,
     .is_low = true},
    {.element = kBF16, .mask = kCausal, .options = kBias, .is_low = true},
    {.element = kF16, .mask = kWindow, .options = kEvery, .bias = kF16, .is_low = true},
    {.element = kBF16, .options = kBoolMask, .is_low = true},
    {.element = kBF16, .mask = kCausal, .options = kTransform, .bias = kBF16},
    {.element = kBF16, .mask = kCausal, .options = kAlibi, .bias = kBF16},
    {.element = kBF16, .options = kBias, .bias = kBF16},
    {.element = kBF16, .mask = kCausal, .options = kBoolMask, .bias = kBF16},
    {.element = kBF16, .mask = kCausal, .options = kBoolMask | kBias, .bias = kBF16},
    {.element = kBF16, .mask = kCausal, .options = kBoolMask | kDropout, .bias = kBF16},
    {.element = kBF16, .mask = kCausal, .options = kDropout, .bias = kBF16},
    {.element = kBF16, .mask = kCausal, .options = kVarlen, .bias = kBF16},
    {.element = kF16, .mask = kWindow, .options = kAllButDropout},
    {.element = kF16, .mask = kWindow, .options = kEvery},
    {.element = kBF16, .mask = kWindow, .options = kAllButDropout, .negate_scores = true},
    {.element = kBF16, .mask = kWindow, .options = kEvery, .negate_scores = true},
};
// Cases in which several blocks share the keys of a row.
constexpr Case kSplits[] = {
    {.element = kBF16, .seqlen_k = 16384, .is_low = true, .splits_keys = true},
    {.element = kBF16, .mask = kCausal, .splits_keys = true},
    {.element = kF16, .mask = kWindow, .options = kTransform | kAlibi | kDropout, .splits_keys = true},
    {.element = kBF16, .options = kDropout, .is_low = true, .splits_keys = true},
};
constexpr std::int32_t kTwoRules = kDropout | kAlibi, kThreeRules = kDropout | kAlibi | kTransform;
constexpr Case kDropoutBesideRules[] = {
    {.element = kF16, .mask = kWindow, .options = kTwoRules | kVarlen, .negate_scores = true},
    {.element = kF16, .mask = kWindow, .options = kTwoRules | kRing, .negate_scores = true},
    {.element = kF16, .mask = kWindow, .options = kThreeRules | kVarlen, .negate_scores = true},
    {.element = kF16, .mask = kWindow, .options = kThreeRules | kRing, .negate_scores = true},
    {.element = kBF16, .mask = kCausal, .options = kDropout | kBias, .bias = kBF16},
};

constexpr HeadDims kOfProducts[] = {64, 80, 96, 112, 128, 160, 192, 256}, kOfTiles[] = {64, 128, 256};
constexpr HeadDims kOfRules[] = {64, 128, 192, 256}, k192And128[] = {{192, 128}}, k40And80[] = {{40, 80}},
                   k128[] = {128};

constexpr Group kGroups[] = {
    {.head_dims = kOfProducts, .cases = kEveryMask},       {.head_dims = kOfTiles, .cases = kManyKeys},
    {.head_dims = k192And128, .cases = kWiderThanV},       {.head_dims = kOfTiles, .cases = kLongSums},
    {.head_dims = k40And80, .cases = kFullAlone},          {.head_dims = kOfTiles, .cases = kParts},
    {.head_dims = k128, .cases = kPartsWithRules},         {.head_dims = kOfTiles, .cases = kEveryOption},
    {.head_dims = kOfRules, .cases = kDropoutBesideRules}, {.head_dims = kOfTiles, .cases = kSplits},
};

Sm90ForwardVariant variant_of(const Case& c, HeadDims head_dim) {
  Facts facts = {.element = c.element,
                 .head_dim = head_dim.qk,
                 .head_dim_v = head_dim.v,
                 .mask = c.mask,
                 .options = c.options,
                 .bias = c.bias,
                 .negate_scores = c.negate_scores};
  facts.see_mask_as_blocks();
  const bool bias_tiles = c.maps_bias && sm90_takes_bias_tiles(facts);
  Sm90ForwardVariant v =
      c.is_low ? sm90_forward_low(facts, bias_tiles) : sm90_forward_tall(facts, c.seqlen_k, bias_tiles);
  v.tile.schedule = c.splits_keys ? Schedule::kStatic : sm90_forward_schedule(facts, c.seqlen_k);
  v.puts_aside = c.puts_aside;
  v.splits_keys = c.splits_keys;
  return v;
}

}  // namespace

std::vector<Variant> sm90_forward_examples(const Arch& /*arch*/) {
  std::vector<Variant> variants;
  const auto add = [&](const Case& c, HeadDims head_dim) {
    if ((c.options & kBias) != 0 && head_dim.qk > kSm90MostHeadDimWithBias) return;
    const Variant v = variant_of(c, head_dim);
    if (std::find(variants.begin(), variants.end(), v) == variants.end()) variants.push_back(v);
  };
  for (const Group& group : kGroups) {
    for (const HeadDims head_dim : group.head_dims) {
      for (const Case& c : group.cases) add(c, head_dim);
    }
  }
  return variants;
}

}  // namespace attend::cuda
