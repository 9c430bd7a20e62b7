// The examples of sm90_f32_forward.
#include <algorithm>

#include "cuda/examples/family_examples.hpp"
#include "cuda/launch/sm90_f32_forward_variant.hpp"
#include "cuda/launch/sm90_forward_variant.hpp"

namespace attend::cuda {
namespace {

using enum MaskKind;
using option::kAlibi, option::kBias, option::kBlockMask, option::kBoolMask, option::kTransform, option::kVarlen;

constexpr std::int32_t kRules = kTransform | kAlibi | kBias;

struct Case {
  HeadDims head_dim;
  MaskKind mask = kFull;
  std::int32_t options = 0;
  bool negate_scores = false;
  bool is_low = false;
  bool is_aligned = true;
};

constexpr Case kCases[] = {
    {.head_dim = 64},
    {.head_dim = 64, .mask = kCausal},
    {.head_dim = 64, .mask = kWindow, .options = kVarlen},
    {.head_dim = 64, .options = kTransform | kAlibi},
    {.head_dim = 64, .mask = kCausal, .negate_scores = true, .is_low = true},
    {.head_dim = 128},
    {.head_dim = 128, .mask = kCausal},
    {.head_dim = 128, .mask = kWindow, .options = kTransform | kAlibi | kVarlen, .negate_scores = true},
    {.head_dim = 128, .mask = kCausal, .options = kAlibi},
    {.head_dim = 128, .mask = kCausal, .is_low = true},
    {.head_dim = 64, .mask = kWindow, .options = kRules},
    {.head_dim = 128, .mask = kWindow, .options = kRules | kVarlen},
    {.head_dim = 64, .options = kBoolMask},
    {.head_dim = 64, .mask = kWindow, .options = kBlockMask | kRules},
    {.head_dim = 128, .mask = kWindow, .options = kBoolMask},
    {.head_dim = 128, .mask = kWindow, .options = kBlockMask | kBias | kTransform},
    {.head_dim = 64, .is_low = true},
    {.head_dim = 64, .options = kAlibi, .is_aligned = false},
    {.head_dim = 64, .options = kAlibi, .is_low = true, .is_aligned = false},
    {.head_dim = 64, .options = kBlockMask | kAlibi, .is_aligned = false},
    {.head_dim = 96},
    {.head_dim = {72, 40}, .mask = kWindow, .is_aligned = false},
    {.head_dim = {8, 112}, .is_low = true, .is_aligned = false},
};

}  // namespace

std::vector<Variant> sm90_f32_forward_examples(const Arch& arch) {
  std::vector<Variant> variants;
  for (const Case& c : kCases) {
    Sm90F32ForwardVariant v = {{.head_dim = c.head_dim.qk,
                                .head_dim_v = c.head_dim.v,
                                .mask = c.mask,
                                .options = c.options,
                                .negate_scores = c.negate_scores,
                                .aligned = c.is_aligned}};
    v.wide_options = v.options;
    v.see_mask_as_blocks();
    v.tile = sm90_f32_forward_tile(v, c.is_low);
    v.tile.schedule = sm90_forward_schedule(v, 512);
    v.wide = simt_variant(v, c.is_low, arch.max_smem_per_block).forward;
    variants.emplace_back(v);
  }
  return variants;
}

}  // namespace attend::cuda
