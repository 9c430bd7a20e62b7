#include "cuda/examples/examples.hpp"

#include <fmt/format.h>

#include <set>
#include <string_view>
#include <utility>

#include "attend/error.hpp"
#include "cuda/examples/family_examples.hpp"

namespace attend::cuda {
namespace {

/// Of the families beside the ladder.
struct Entry {
  std::string_view family;
  std::vector<Variant> (*examples)(const Arch&);
};

constexpr Entry kEntries[] = {{.family = "simt", .examples = simt_examples},
                              {.family = "sm80_forward", .examples = sm80_forward_examples},
                              {.family = "sm80_backward", .examples = sm80_backward_examples},
                              {.family = "sm90_forward", .examples = sm90_forward_examples},
                              {.family = "sm90_backward", .examples = sm90_backward_examples}};

}  // namespace

std::vector<Variant> example_variants(const Family& family, const Arch& arch) {
  const std::string_view name = family.name;
  for (const Entry& entry : kEntries) {
    if (entry.family == name) return entry.examples(arch);
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
