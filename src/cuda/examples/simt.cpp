// The examples of simt. Each property occurs in at least one example, but not in combination with all other properties.
#include <optional>

#include "cuda/examples/family_examples.hpp"
#include "cuda/launch/simt_variant.hpp"

namespace attend::cuda {
namespace {

using enum ElementType;
using enum MaskKind;
using option::kAddsToOutputs, option::kAlibi, option::kBias, option::kBoolMask, option::kDropout,
    option::kHugeTransform, option::kPhiloxState, option::kRing, option::kTransform, option::kVarlen;

struct Case {
  HeadDims head_dim;
  ElementType element;
  MaskKind mask = kFull;
  std::int32_t options = 0;
  ElementType bias = kF32;
  std::optional<ElementType> dbias = {};
  bool dbias_over_rows = false;

  /// Returns the compile-time parameters of a forward pass. If head_dim is a multiple of 16, tensors are assumed to be
  /// aligned.
  [[nodiscard]] Facts facts() const {
    return {.element = element,
            .head_dim = head_dim.qk,
            .head_dim_v = head_dim.v,
            .mask = mask,
            .options = options,
            .bias = bias,
            .aligned = head_dim.qk % 16 == 0};
  }
};

constexpr std::int32_t kRest = kTransform | kAlibi | kDropout;
constexpr std::int32_t kRestAndMatrices = kRest | kBoolMask | kBias;

constexpr Case kCases[] = {
    {.head_dim = 64, .element = kF16, .mask = kCausal},
    {.head_dim = 16, .element = kF32},
    {.head_dim = 128, .element = kF32, .mask = kCausal},
    {.head_dim = 24, .element = kBF16},
    {.head_dim = 40, .element = kBF16, .options = kBias, .bias = kF16, .dbias = kF32},
    {.head_dim = 124, .element = kF32, .mask = kWindow, .options = kBias, .bias = kF16, .dbias = kF16},
    {.head_dim = 40, .element = kF32, .options = kTransform},
    {.head_dim = 64, .element = kF32, .options = kTransform | kHugeTransform},
    {.head_dim = 96, .element = kBF16, .options = kAlibi},
    {.head_dim = 256, .element = kF16, .options = kDropout},
    {.head_dim = 64, .element = kF32, .mask = kCausal, .options = kDropout | kPhiloxState},
    {.head_dim = 512, .element = kBF16, .options = kVarlen},
    {.head_dim = {17, 300}, .element = kF16, .options = kBoolMask},
    {.head_dim = 64, .element = kBF16, .mask = kWindow, .options = kBias, .dbias = kBF16, .dbias_over_rows = true},
    {.head_dim = 64, .element = kF32, .mask = kWindow, .options = kRest | kVarlen},
    {.head_dim = 128, .element = kBF16, .mask = kWindow, .options = kRestAndMatrices, .bias = kF16, .dbias = kF16},
    {.head_dim = 64, .element = kF32, .mask = kCausal, .options = kAddsToOutputs},
    {.head_dim = {17, 20}, .element = kF16, .mask = kWindow, .options = kRest | kRing},
    {.head_dim = 256, .element = kBF16, .options = kAddsToOutputs | kBias},
};

}  // namespace

std::vector<Variant> simt_examples(const Arch& arch) {
  std::vector<Variant> variants;
  for (const Case& c : kCases) {
    Facts facts = c.facts();
    for (const bool few_rows : {false, true}) {
      if (few_rows && facts.options != 0) continue;
      const SimtVariant forward = simt_variant(facts, few_rows, arch.max_smem_per_block);
      if (!facts.has(kAddsToOutputs) || forward.forward.columns.count == 1) variants.emplace_back(forward);
    }
    facts.is_backward = 1;
    SimtVariant backward = simt_variant(facts, false, arch.max_smem_per_block);
    backward.has_dbias = c.dbias.has_value();
    backward.dbias = c.dbias.value_or(kF32);
    backward.dbias_over_rows = c.dbias_over_rows;
    variants.emplace_back(backward);
    if (facts.options != (kDropout | kPhiloxState)) continue;
    backward.element = kF16;
    backward.sole_key = 1;
    variants.emplace_back(backward);
  }
  return variants;
}

}  // namespace attend::cuda
