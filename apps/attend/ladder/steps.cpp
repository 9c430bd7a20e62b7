#include "ladder/steps.hpp"

#include <algorithm>
#include <iterator>
#include <span>

#include "cuda/launch/rung.hpp"

namespace attend::cli {
namespace {

using cuda::Family;

/// Returns the kernel families for tensor cores that `auto` may choose and that are not rungs of the ladder. Families
/// that also support float32, such as `simt`, are not included.
std::vector<const Family*> products() {
  const std::span<const Family* const> all = cuda::families();
  std::vector<const Family*> found;
  std::copy_if(all.begin() + std::ssize(cuda::ladder()), all.end(), std::back_inserter(found),
               [](const Family* family) { return family->in_auto && !family->dtypes.has(DType::kF32); });
  return found;
}

auto architectures_of(const Family& family) {
  const auto archs = cuda::known_archs();
  return std::count_if(archs.begin(), archs.end(), [&](const cuda::Arch& arch) { return family.supports(arch); });
}

/// Returns a production family that supports the architecture and the pass. If there are several, returns the family
/// that supports the fewest architectures. Returns null if there is none.
const Family* product_for(const cuda::Arch& arch, bool Family::*has_pass) {
  const Family* best = nullptr;
  for (const Family* family : products()) {
    if (!family->supports(arch) || !(family->*has_pass)) continue;
    if (best == nullptr || architectures_of(*family) < architectures_of(*best)) best = family;
  }
  return best;
}

}  // namespace

std::vector<LadderStep> ladder_steps(const cuda::Arch& arch) {
  std::vector<LadderStep> steps;
  for (const cuda::Rung& rung : cuda::ladder()) steps.push_back({rung.number, cuda::find_family(rung.name)});
  const int last = steps.back().number + 1;
  const Family* forward = product_for(arch, &Family::has_forward);
  const Family* backward = product_for(arch, &Family::has_backward);
  if (forward != nullptr) steps.push_back({last, forward});
  if (backward != nullptr && backward != forward) steps.push_back({last, backward});
  return steps;
}

std::vector<std::string_view> ladder_names() {
  std::vector<std::string_view> names;
  for (const cuda::Rung& rung : cuda::ladder()) names.emplace_back(rung.name);
  for (const Family* family : products()) names.emplace_back(family->name);
  return names;
}

}  // namespace attend::cli
