#include "cuda/examples/examples.hpp"

#include <fmt/format.h>

#include <cstddef>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "attend/error.hpp"
#include "cuda/examples/family_examples.hpp"
#include "cuda/launch/facts.hpp"

namespace attend::cuda {
namespace {

/// A kernel family outside the ladder and the function that returns its examples.
struct Entry {
  std::string_view family;
  std::vector<Variant> (*examples)(const Arch&);
};

constexpr Entry kEntries[] = {{.family = "simt", .examples = simt_examples},
                              {.family = "sm80_forward", .examples = sm80_forward_examples},
                              {.family = "sm80_backward", .examples = sm80_backward_examples},
                              {.family = "sm90_forward", .examples = sm90_forward_examples},
                              {.family = "sm90_f32_forward", .examples = sm90_f32_forward_examples},
                              {.family = "sm90_fp8_forward", .examples = sm90_fp8_forward_examples},
                              {.family = "sm90_backward", .examples = sm90_backward_examples},
                              {.family = "sm90_backward_panels", .examples = sm90_backward_panels_examples}};

/// Adds a variant for each score modification that the family supports but no variant of the pass has. The new variant
/// equals the first variant of the pass, except that it has this modification.
void add_missing_modifications(std::vector<Variant>& variants, std::int32_t is_backward, std::int32_t takes) {
  constexpr std::size_t kOptions = offsetof(Facts, options) / sizeof(std::int32_t);
  constexpr std::size_t kIsBackward = offsetof(Facts, is_backward) / sizeof(std::int32_t);
  std::optional<Variant> first;
  std::int32_t missing = takes & option::kEveryMod;
  for (const Variant& variant : variants) {
    if (variant.ints()[kIsBackward] != is_backward) continue;
    if (!first) first = variant;
    missing &= ~variant.ints()[kOptions];
  }
  for (int mod = 0; first && mod < kScoreMods; ++mod) {
    const std::int32_t bit = option::bit_of(static_cast<ScoreMod>(mod));
    if ((missing & bit) == 0) continue;
    Variant variant = *first;
    variant.set(kOptions, variant.ints()[kOptions] | bit);
    variants.push_back(variant);
  }
}

}  // namespace

std::vector<Variant> example_variants(const Family& family, const Arch& arch) {
  const std::string_view name = family.name;
  for (const Entry& entry : kEntries) {
    if (entry.family != name) continue;
    std::vector<Variant> variants = entry.examples(arch);
    for (const std::int32_t is_backward : {0, 1}) add_missing_modifications(variants, is_backward, family.takes);
    return variants;
  }
  for (const Rung& rung : ladder()) {
    if (rung.name == name) return rung_examples(rung, arch);
  }
  throw Error(ErrorCode::kInternal, fmt::format("examples: none of the family '{}'", name));
}

std::vector<KernelSpec> example_specs(const Family& family, const Arch& arch) {
  std::vector<KernelSpec> specs;
  std::set<std::string> seen;
  for (const Variant& variant : example_variants(family, arch)) {
    for (KernelSpec& spec : family.kernels(variant, arch)) {
      if (seen.insert(identity(spec)).second) specs.push_back(std::move(spec));
    }
  }
  return specs;
}

}  // namespace attend::cuda
