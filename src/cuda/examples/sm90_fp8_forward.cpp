// The examples of sm90_fp8_forward.
#include "cuda/examples/family_examples.hpp"
#include "cuda/launch/sm90_forward_variant.hpp"
#include "cuda/launch/sm90_fp8_forward_variant.hpp"

namespace attend::cuda {
namespace {

using enum MaskKind;
using enum ElementType;

struct Case {
  HeadDims head_dim;
  ElementType output = kBF16;
  MaskKind mask = kFull;
  std::int32_t options = 0;
  bool negate_scores = false;
  bool key_blocks = false;
  bool is_low = false;
};

constexpr Case kCases[] = {
    {.head_dim = 64},
    {.head_dim = 64, .output = kF16, .mask = kCausal},
    {.head_dim = 64, .output = kF32, .mask = kWindow, .options = option::kVarlen},
    {.head_dim = 64, .key_blocks = true},
    {.head_dim = 64, .mask = kCausal, .is_low = true},
    {.head_dim = 96, .mask = kCausal},
    {.head_dim = {96, 64}, .mask = kWindow, .negate_scores = true},
    {.head_dim = 128},
    {.head_dim = 128, .mask = kCausal},
    {.head_dim = 128, .mask = kWindow, .options = option::kVarlen, .negate_scores = true, .is_low = true},
    {.head_dim = 128, .output = kF32, .key_blocks = true},
    {.head_dim = 128, .output = kF16, .mask = kWindow, .options = option::kVarlen, .negate_scores = true},
    {.head_dim = 128, .mask = kWindow, .options = option::kVarlen, .negate_scores = true, .key_blocks = true},
    {.head_dim = {64, 128}, .mask = kCausal, .options = option::kVarlen},
};

}  // namespace

std::vector<Variant> sm90_fp8_forward_examples(const Arch& /*arch*/) {
  std::vector<Variant> variants;
  for (const Case& c : kCases) {
    Sm90Fp8ForwardVariant v = {{.element = c.output,
                                .head_dim = c.head_dim.qk,
                                .head_dim_v = c.head_dim.v,
                                .mask = c.mask,
                                .options = c.options,
                                .negate_scores = c.negate_scores}};
    v.key_blocks = c.key_blocks ? 1 : 0;
    v.tile = sm90_fp8_forward_tile(v, c.key_blocks, c.is_low);
    v.tile.schedule = sm90_forward_schedule(v, 512);
    variants.emplace_back(v);
  }
  return variants;
}

}  // namespace attend::cuda
