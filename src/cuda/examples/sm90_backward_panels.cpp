// The examples of sm90_backward_panels.
#include "cuda/examples/family_examples.hpp"
#include "cuda/launch/sm90_backward_panels_plan.hpp"

namespace attend::cuda {
namespace {

using enum ElementType;
using enum MaskKind;
using option::kVarlen;

struct Case {
  HeadDims head_dim;
  ElementType element;
  MaskKind mask = kFull;
  std::int32_t options = 0;
};

constexpr Case kCases[] = {
    {.head_dim = 512, .element = kBF16},
    {.head_dim = 512, .element = kBF16, .mask = kCausal},
    {.head_dim = 512, .element = kF16, .mask = kCausal},
    {.head_dim = 512, .element = kBF16, .mask = kWindow},
    {.head_dim = 512, .element = kBF16, .mask = kCausal, .options = kVarlen},
    {.head_dim = 512, .element = kF16, .mask = kWindow, .options = kVarlen},
    {.head_dim = 384, .element = kBF16},
    {.head_dim = 384, .element = kF16, .mask = kCausal},
    {.head_dim = 320, .element = kF16, .mask = kWindow},
    {.head_dim = 264, .element = kF16, .options = kVarlen},
    {.head_dim = {512, 128}, .element = kBF16, .mask = kCausal},
    {.head_dim = {264, 512}, .element = kF16},
    {.head_dim = {301, 259}, .element = kBF16, .mask = kWindow, .options = kVarlen},
};

}  // namespace

std::vector<Variant> sm90_backward_panels_examples(const Arch& /*arch*/) {
  std::vector<Variant> variants;
  for (const Case& c : kCases) {
    variants.emplace_back(Sm90BackwardPanelsVariant{Facts{.element = c.element,
                                                          .head_dim = c.head_dim.qk,
                                                          .head_dim_v = c.head_dim.v,
                                                          .mask = c.mask,
                                                          .options = c.options,
                                                          .is_backward = 1}});
  }
  return variants;
}

}  // namespace attend::cuda
