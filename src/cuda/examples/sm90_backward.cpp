// The examples of sm90_backward.
#include <span>

#include "cuda/examples/family_examples.hpp"
#include "cuda/launch/sm90_backward_variant.hpp"

namespace attend::cuda {
namespace {

using enum ElementType;
using enum MaskKind;
using option::kAddsToOutputs, option::kAlibi, option::kBias, option::kBoolMask, option::kDropout, option::kPhiloxState,
    option::kRing, option::kTransform, option::kVarlen;

struct Case {
  HeadDims head_dim = {};  ///< if it is 0, the case uses each head_dim of its group
  ElementType element;
  MaskKind mask = kFull;
  std::int32_t options = 0;  ///< if a bias is active, it has the dtype of q
  bool is_deterministic = false;
  bool adds_up = false;
  bool is_persistent = false;
  bool owns_heads = false;
  int dbias_blocks = 0;
  bool sole_key = false;
};

/// A group of examples: each case in combination with each head_dim.
struct Group {
  std::span<const HeadDims> head_dims;
  std::span<const Case> cases;
};

constexpr Case kEveryMask[] = {
    {.element = kBF16},
    {.element = kBF16, .is_deterministic = true},
    {.element = kF16, .options = kVarlen},
    {.element = kBF16, .adds_up = true},
    {.element = kBF16, .mask = kCausal},
    {.element = kBF16, .mask = kCausal, .is_deterministic = true},
    {.element = kF16, .mask = kCausal, .options = kVarlen},
    {.element = kBF16, .mask = kCausal, .adds_up = true},
    {.element = kBF16, .mask = kWindow},
    {.element = kBF16, .mask = kWindow, .is_deterministic = true},
    {.element = kF16, .mask = kWindow, .options = kVarlen},
};
constexpr Case kTwoBuffersOfDq[] = {
    {.head_dim = {64, 128},
     .element = kBF16,
     .mask = kCausal,
     .is_deterministic = true},  // all columns of dq in one pass
};
constexpr Case kOwnHeads[] = {
    {.element = kBF16, .owns_heads = true},
    {.element = kF16, .mask = kCausal, .owns_heads = true},
    {.element = kBF16, .mask = kWindow, .owns_heads = true},
    {.head_dim = 80, .element = kBF16, .mask = kCausal, .options = kDropout, .owns_heads = true},
    {.head_dim = {96, 64}, .element = kF16, .mask = kCausal, .options = kAlibi, .owns_heads = true},
    {.element = kBF16, .options = kTransform, .owns_heads = true},
};
constexpr Case kPersistentAt64[] = {
    {.element = kBF16, .is_persistent = true},
    {.element = kF16, .mask = kCausal, .is_persistent = true},
    {.element = kBF16, .mask = kWindow, .is_persistent = true},
    {.element = kBF16, .mask = kCausal, .options = kDropout, .is_persistent = true},
    {.element = kF16, .mask = kCausal, .options = kAlibi, .is_persistent = true},
    {.element = kBF16, .options = kTransform, .is_persistent = true},
    {.element = kBF16, .options = kDropout, .is_persistent = true},
    {.element = kF16, .mask = kCausal, .owns_heads = true},
};
constexpr Case kAlibiAlone[] = {
    {.element = kBF16, .mask = kCausal, .options = kAlibi},
    {.element = kF16, .options = kAlibi},
    {.element = kBF16, .mask = kWindow, .options = kAlibi | kVarlen, .is_deterministic = true},
};
// At 64 columns without a mask, choose() sets a window of unlimited size, so no case here has the full mask.
constexpr Case kDropoutAt64[] = {
    {.element = kBF16, .mask = kCausal, .options = kDropout},
    {.element = kF16, .mask = kWindow, .options = kDropout},
    {.element = kBF16, .mask = kWindow, .options = kDropout | kVarlen, .is_deterministic = true},
};
constexpr Case kDropoutAt128[] = {
    {.element = kBF16, .mask = kCausal, .options = kDropout},
    {.element = kF16, .options = kDropout},
    {.element = kBF16, .mask = kWindow, .options = kDropout | kVarlen, .is_deterministic = true},
};
constexpr Case kSeedInMemory[] = {
    {.element = kBF16, .mask = kCausal, .options = kDropout | kPhiloxState},
    {.element = kF16, .mask = kWindow, .options = kDropout | kPhiloxState | kVarlen},
};
constexpr Case kOthersTo128[] = {
    {.head_dim = 64, .element = kBF16, .options = kAlibi | kDropout},
    {.head_dim = 64, .element = kF16, .mask = kCausal, .options = kAlibi | kDropout | kVarlen},
    {.head_dim = {40, 80}, .element = kF16, .mask = kCausal},
    {.head_dim = {128, 64}, .element = kBF16},
    {.head_dim = {64, 128}, .element = kF16, .mask = kCausal, .options = kDropout, .adds_up = true},
    {.head_dim = 96, .element = kBF16, .mask = kCausal},
};
constexpr Case kParts[] = {
    {.element = kBF16, .options = kAddsToOutputs},
    {.element = kBF16, .mask = kCausal, .options = kAddsToOutputs},
    {.element = kBF16, .mask = kWindow, .options = kAddsToOutputs},
    {.element = kBF16, .mask = kCausal, .options = kAddsToOutputs, .adds_up = true},
    {.element = kF16, .options = kRing | kAlibi, .is_deterministic = true},
    {.element = kBF16, .mask = kCausal, .options = kRing | kDropout},
};
// Cases for head_dims above 128. They cover all masks and the options that need registers.
constexpr Case kWide[] = {
    {.element = kBF16},
    {.element = kF16, .options = kVarlen},
    {.element = kBF16, .options = kDropout},
    {.element = kBF16, .options = kDropout | kPhiloxState},
    {.element = kF16, .options = kAlibi | kDropout | kVarlen},
    {.element = kBF16, .mask = kCausal},
    {.element = kF16, .mask = kCausal, .options = kVarlen},
    {.element = kBF16, .mask = kCausal, .options = kDropout},
    {.element = kBF16, .mask = kCausal, .options = kDropout | kPhiloxState},
    {.element = kF16, .mask = kCausal, .options = kAlibi | kDropout | kVarlen},
    {.element = kBF16, .mask = kWindow},
    {.element = kF16, .mask = kWindow, .options = kVarlen},
    {.element = kBF16, .mask = kWindow, .options = kDropout},
    {.element = kBF16, .mask = kWindow, .options = kDropout | kPhiloxState},
    {.element = kF16, .mask = kWindow, .options = kAlibi | kDropout | kVarlen},
};
// With a transform or a bias, all head_dims use the same kernels, so these cases choose the head_dim themselves.
constexpr Case kTransformAndBias[] = {
    {.head_dim = 256, .element = kBF16, .options = kTransform},
    {.head_dim = 256, .element = kBF16, .mask = kCausal, .options = kTransform},
    {.head_dim = 256, .element = kBF16, .mask = kWindow, .options = kTransform},
    {.head_dim = 256, .element = kF16, .mask = kCausal, .options = kTransform | kDropout},
    {.head_dim = 128, .element = kBF16, .mask = kCausal, .options = kTransform},
    {.head_dim = {64, 128}, .element = kF16, .mask = kWindow, .options = kTransform | kVarlen},
    {.head_dim = 64, .element = kBF16, .options = kBias},
    {.head_dim = 128, .element = kBF16, .options = kBias},
};
constexpr Case kDbias[] = {
    {.element = kBF16, .options = kBias, .dbias_blocks = 1},
    {.element = kBF16, .options = kBias, .dbias_blocks = 2},
    {.element = kF16, .mask = kCausal, .options = kBias | kDropout, .dbias_blocks = 4},
    {.element = kF16, .mask = kWindow, .options = kBias | kDropout, .dbias_blocks = 5},
};
constexpr Case kOthersBeyond128[] = {
    {.head_dim = 128, .element = kBF16, .mask = kCausal, .options = kBias, .dbias_blocks = 8},
    {.head_dim = {128, 64}, .element = kBF16, .mask = kWindow, .options = kBias | kDropout, .dbias_blocks = 1},
    {.head_dim = 192, .element = kF16, .mask = kWindow, .options = kBias | kDropout},
    {.head_dim = {192, 128}, .element = kBF16, .mask = kCausal},
    {.head_dim = {136, 64}, .element = kBF16},
    {.head_dim = {40, 200}, .element = kF16, .mask = kCausal},
    {.head_dim = {256, 160}, .element = kBF16, .mask = kWindow, .options = kAlibi},
};
constexpr Case kMasks[] = {
    {.element = kBF16, .options = kBoolMask},
    {.element = kF16, .options = kBoolMask | kDropout},
    {.element = kBF16, .mask = kCausal, .options = kBoolMask, .is_deterministic = true},
};
constexpr Case kWideMasks[] = {
    {.element = kBF16, .mask = kCausal, .options = kBoolMask},
    {.element = kF16, .options = kBoolMask | kDropout},
};
constexpr Case kSoleKeys[] = {
    {.element = kBF16, .mask = kWindow, .options = kDropout | kPhiloxState | kVarlen, .sole_key = true},
};

constexpr HeadDims kOfCase[] = {0}, k64[] = {64}, k128[] = {128}, k64And128[] = {64, 128}, k192[] = {192},
                   k192And256[] = {192, 256};
constexpr HeadDims kWithDbias[] = {64, 128, 192}, kNarrowAndWide[] = {64, 200};

constexpr Group kGroups[] = {
    {.head_dims = k64And128, .cases = kEveryMask},     {.head_dims = kOfCase, .cases = kTwoBuffersOfDq},
    {.head_dims = k64, .cases = kAlibiAlone},          {.head_dims = k128, .cases = kOwnHeads},
    {.head_dims = k64, .cases = kPersistentAt64},      {.head_dims = k64, .cases = kDropoutAt64},
    {.head_dims = k64, .cases = kSeedInMemory},        {.head_dims = k128, .cases = kAlibiAlone},
    {.head_dims = k128, .cases = kDropoutAt128},       {.head_dims = k128, .cases = kSeedInMemory},
    {.head_dims = kOfCase, .cases = kOthersTo128},     {.head_dims = k64And128, .cases = kParts},
    {.head_dims = k192And256, .cases = kWide},         {.head_dims = kOfCase, .cases = kTransformAndBias},
    {.head_dims = kWithDbias, .cases = kDbias},        {.head_dims = kOfCase, .cases = kOthersBeyond128},
    {.head_dims = kNarrowAndWide, .cases = kSoleKeys}, {.head_dims = k64And128, .cases = kMasks},
    {.head_dims = k192, .cases = kWideMasks},
};

Sm90BackwardVariant variant_of(const Case& c, HeadDims of_group) {
  const HeadDims head_dim = c.head_dim.qk != 0 ? c.head_dim : of_group;
  Sm90BackwardVariant v = {Facts{.element = c.element,
                                 .head_dim = head_dim.qk,
                                 .head_dim_v = head_dim.v,
                                 .mask = c.mask,
                                 .options = c.options,
                                 .bias = (c.options & kBias) != 0 ? c.element : kF32,
                                 .is_backward = 1,
                                 .sole_key = c.sole_key}};
  v.see_mask_as_blocks();
  v.is_deterministic = c.is_deterministic;
  v.adds_up = c.adds_up;
  v.is_persistent = c.is_persistent;
  v.owns_heads = c.owns_heads;
  v.dbias_blocks = c.dbias_blocks;
  return v;
}

}  // namespace

std::vector<Variant> sm90_backward_examples(const Arch& /*arch*/) {
  std::vector<Variant> variants;
  for (const Group& group : kGroups) {
    for (const HeadDims head_dim : group.head_dims) {
      for (const Case& c : group.cases) variants.emplace_back(variant_of(c, head_dim));
    }
  }
  return variants;
}

}  // namespace attend::cuda
