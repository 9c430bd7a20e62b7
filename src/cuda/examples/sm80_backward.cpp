// The examples of sm80_backward.
#include <algorithm>
#include <optional>

#include "cuda/examples/family_examples.hpp"
#include "cuda/launch/sm80_backward_variant.hpp"

namespace attend::cuda {
namespace {

using enum ElementType;
using enum MaskKind;
using option::kAlibi, option::kBias, option::kBoolMask, option::kDropout, option::kPhiloxState, option::kTransform,
    option::kVarlen;

constexpr std::int32_t kEvery = kTransform | kAlibi | kBias | kBoolMask | kDropout;

enum class Dbias { kNone, kStored, kOverRows };  // kOverRows means that dbias is a sum over the query rows

struct Case {
  ElementType element;
  MaskKind mask = kFull;
  std::int32_t options = 0;
  ElementType bias = kF32;  ///< dtype of the bias and of dbias
  bool negate_scores = false;
  int copy_bytes = 16;
  Dbias dbias = Dbias::kNone;
  bool sole_key = false;
};

// Cases that are combined with every head_dim and with both one and two passes over the scores.
constexpr Case kEverywhere[] = {
    {.element = kBF16},
    {.element = kF16, .mask = kCausal, .negate_scores = true},
    {.element = kF16, .mask = kCausal, .options = kBias, .bias = kF16, .copy_bytes = 4, .dbias = Dbias::kOverRows},
    {.element = kBF16, .mask = kWindow, .options = kBias, .bias = kF16, .copy_bytes = 4, .dbias = Dbias::kStored},
    {.element = kBF16, .mask = kWindow, .options = kEvery, .negate_scores = true, .dbias = Dbias::kStored},
    {.element = kF16, .mask = kWindow, .options = kEvery, .bias = kF16, .copy_bytes = 2, .dbias = Dbias::kOverRows},
};
constexpr Case kAlone[] = {
    {.element = kBF16, .mask = kCausal, .options = kVarlen},
    {.element = kF16, .mask = kWindow},
    {.element = kBF16, .mask = kCausal, .options = kTransform},
    {.element = kBF16, .mask = kCausal, .options = kAlibi},
    {.element = kBF16, .options = kAlibi | kDropout},
    {.element = kBF16, .mask = kCausal, .options = kDropout},
    {.element = kF16, .mask = kWindow, .options = kDropout | kPhiloxState},
    {.element = kF16, .options = kBoolMask},
    {.element = kBF16, .options = kBias, .bias = kBF16, .dbias = Dbias::kStored},
};
constexpr std::int32_t kPackedDropout = kDropout | kPhiloxState | kVarlen;
constexpr Case kSoleKeys[] = {
    {.element = kF16, .options = kPackedDropout, .sole_key = true},
    {.element = kF16, .mask = kWindow, .options = kPackedDropout, .sole_key = true},
};

Sm80BackwardVariant variant_of(const Case& c, HeadDims head_dim, bool is_deterministic, int max_smem) {
  const Facts facts = {.element = c.element,
                       .head_dim = head_dim.qk,
                       .head_dim_v = head_dim.v,
                       .mask = c.mask,
                       .options = c.options,
                       .bias = c.bias,
                       .is_backward = 1,
                       .negate_scores = c.negate_scores,
                       .aligned = c.copy_bytes == 16};
  Sm80BackwardVariant v = sm80_backward_variant(facts, c.copy_bytes, max_smem, is_deterministic);
  if (c.dbias != Dbias::kNone) v.set_dbias(c.bias, c.dbias == Dbias::kOverRows);
  v.sole_key = c.sole_key;
  return v;
}

}  // namespace

std::vector<Variant> sm80_backward_examples(const Arch& arch) {
  std::vector<Variant> variants;
  const auto add = [&](const Case& c, HeadDims head_dim, bool is_deterministic) {
    const Variant v = variant_of(c, head_dim, is_deterministic, arch.max_smem_per_block);
    if (std::find(variants.begin(), variants.end(), v) == variants.end()) variants.push_back(v);
  };
  for (const int head_dim : {64, 128, 256}) {
    for (const bool is_deterministic : {false, true}) {
      for (const Case& c : kEverywhere) add(c, {head_dim - (c.copy_bytes == 2 ? 3 : 0), head_dim}, is_deterministic);
    }
  }
  for (const Case& c : kAlone) {
    add(c, 64, false);
    add(c, 128, false);
    add(c, 128, true);
  }
  add({.element = kBF16, .mask = kCausal}, 96, false);
  add({.element = kF16}, {24, 40}, false);
  add({.element = kF16, .mask = kCausal}, {192, 128}, false);
  add({.element = kBF16}, {8, 200}, true);
  for (const Case& c : kSoleKeys) add(c, {64, 40}, false);
  return variants;
}

}  // namespace attend::cuda
