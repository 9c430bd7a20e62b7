// Variants of sm90_backward that stand for all that it can choose.
#include "cuda/launch/sm90_backward_variant.hpp"

namespace attend::cuda {
namespace {

/// Beyond 128 columns: each depth, with one of v's that differs, and what takes registers.
template <class Add>
void add_wide_examples(const Add& add) {
  using enum ElementType;
  using enum MaskKind;
  for (const int head_dim : {192, 256}) {
    for (const MaskKind mask : {kFull, kCausal, kWindow}) {
      add(kBF16, head_dim, head_dim, mask);
      add(kF16, head_dim, head_dim, mask, option::kVarlen);
      add(kBF16, head_dim, head_dim, mask, option::kDropout);
      add(kBF16, head_dim, head_dim, mask, option::kDropout | option::kPhiloxState);
      add(kF16, head_dim, head_dim, mask, option::kAlibi | option::kDropout | option::kVarlen);
    }
  }
  for (const MaskKind mask : {kFull, kCausal, kWindow}) {
    add(kBF16, 256, 256, mask, option::kSoftcap);
  }
  add(kF16, 256, 256, kCausal, option::kSoftcap | option::kDropout);
  add(kBF16, 128, 128, kCausal, option::kSoftcap);
  add(kF16, 64, 128, kWindow, option::kSoftcap | option::kVarlen);
  add(kBF16, 64, 64, kFull, option::kBias);
  add(kBF16, 128, 128, kFull, option::kBias);
  for (const int head_dim : {64, 128, 192}) {
    add(kBF16, head_dim, head_dim, kFull, option::kBias, false, false, 1);
    add(kBF16, head_dim, head_dim, kFull, option::kBias, false, false, 2);
    add(kF16, head_dim, head_dim, kCausal, option::kBias | option::kDropout, false, false, 4);
    add(kF16, head_dim, head_dim, kWindow, option::kBias | option::kDropout, false, false, 5);
  }
  add(kBF16, 128, 128, kCausal, option::kBias, false, false, 8);
  add(kBF16, 128, 64, kWindow, option::kBias | option::kDropout, false, false, 1);
  add(kF16, 192, 192, kWindow, option::kBias | option::kDropout);
  add(kBF16, 192, 128, kCausal);
  add(kBF16, 136, 64, kFull);
  add(kF16, 40, 200, kCausal);
  add(kBF16, 256, 160, kWindow, option::kAlibi);
}

}  // namespace

std::vector<Variant> sm90_backward_examples() {
  using enum ElementType;
  using enum MaskKind;
  std::vector<Variant> variants;
  const auto add = [&](ElementType element, int head_dim, int head_dim_v, MaskKind mask, std::int32_t options = 0,
                       bool deterministic = false, bool adds_up = false, int dbias_blocks = 0) {
    Sm90BackwardVariant v = {Facts{.element = element,
                                   .head_dim = head_dim,
                                   .head_dim_v = head_dim_v,
                                   .mask = mask,
                                   .options = options,
                                   .is_backward = 1}};
    v.bias = (options & option::kBias) != 0 ? element : ElementType::kF32;
    v.is_deterministic = deterministic;
    v.adds_up = adds_up;
    v.dbias_blocks = dbias_blocks;
    variants.emplace_back(v);
  };
  for (const int head_dim : {64, 128}) {
    for (const MaskKind mask : {kFull, kCausal, kWindow}) {
      add(kBF16, head_dim, head_dim, mask);
      add(kBF16, head_dim, head_dim, mask, 0, true);
      add(kF16, head_dim, head_dim, mask, option::kVarlen);
      if (mask != kWindow) add(kBF16, head_dim, head_dim, mask, 0, false, true);
    }
  }
  add(kBF16, 64, 128, kCausal, 0, true);  // one pass of dq, two buffers for it
  for (const int head_dim : {64, 128}) {
    for (const std::int32_t rules : {option::kAlibi, option::kDropout}) {
      add(kBF16, head_dim, head_dim, kCausal, rules);
      add(kF16, head_dim, head_dim, head_dim == 64 && rules == option::kDropout ? kWindow : kFull, rules);
      add(kBF16, head_dim, head_dim, kWindow, rules | option::kVarlen, true);
    }
    add(kBF16, head_dim, head_dim, kCausal, option::kDropout | option::kPhiloxState);
    add(kF16, head_dim, head_dim, kWindow, option::kDropout | option::kPhiloxState | option::kVarlen);
  }
  add(kBF16, 64, 64, kFull, option::kAlibi | option::kDropout);
  add(kF16, 64, 64, kCausal, option::kAlibi | option::kDropout | option::kVarlen);
  add(kF16, 40, 80, kCausal);
  add(kBF16, 128, 64, kFull);
  add(kF16, 64, 128, kCausal, option::kDropout, false, true);
  add(kBF16, 96, 96, kCausal);
  for (const int head_dim : {64, 128}) {
    for (const MaskKind mask : {kFull, kCausal, kWindow}) {
      add(kBF16, head_dim, head_dim, mask, option::kAddsToOutputs);
    }
    add(kBF16, head_dim, head_dim, kCausal, option::kAddsToOutputs, false, true);
    add(kF16, head_dim, head_dim, kFull, option::kRing | option::kAlibi, true);
    add(kBF16, head_dim, head_dim, kCausal, option::kRing | option::kDropout);
  }
  add_wide_examples(add);
  for (const int head_dim : {64, 200}) {
    add(kBF16, head_dim, head_dim, kWindow, option::kDropout | option::kPhiloxState | option::kVarlen);
    auto v = variants.back().as<Sm90BackwardVariant>();
    v.sole_key = 1;
    variants.back() = v;
  }
  return variants;
}

}  // namespace attend::cuda
