// Chooses a small subset of kernel specs that has every property of the complete set at least once. See covered_by()
// for the properties.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cuda/examples/examples.hpp"

namespace attend::cuda {
namespace {

/// Returns the class of a head_dim. It consists of the width of the tile and one of three cases: head_dim fills the
/// tile, it is a multiple of 8 (16 bytes), or neither.
std::string width_text(std::int64_t head_dim) {
  constexpr std::array<std::int64_t, 4> kWidths = {64, 128, 256, 512};
  const auto* found = std::find_if(kWidths.begin(), kWidths.end() - 1, [&](auto width) { return head_dim <= width; });
  return fmt::format("{} {}", *found, head_dim == *found ? "whole" : head_dim % 8 == 0 ? "in chunks" : "odd");
}

/// Returns the class of a constant's value. The subset must contain every class.
std::string kind_of(const Constant& constant) {
  const auto* number = std::get_if<std::int64_t>(&constant.value);
  const bool is_head_dim = constant.name == "kHeadDim" || constant.name == "kHeadDimV";
  return is_head_dim && number != nullptr ? width_text(*number) : value_text(constant);
}

/// Chooses sets until their union contains all items. In each step, chooses the set with the most items that are not
/// covered yet. At the end, removes each set whose items the other chosen sets cover.
std::vector<std::size_t> cover(const std::vector<std::set<std::string>>& sets) {
  std::map<std::string, int> times;  // number of chosen sets that contain each item
  for (const auto& set : sets) {
    for (const std::string& item : set) times[item] = 0;
  }
  std::vector<std::size_t> chosen;
  const auto missing_of = [&](std::size_t i) {
    return std::count_if(sets[i].begin(), sets[i].end(), [&](const auto& item) { return times[item] == 0; });
  };
  while (true) {
    std::size_t best = 0;
    std::ptrdiff_t most = 0;
    for (std::size_t i = 0; i < sets.size(); ++i) {
      if (const auto missing = missing_of(i); missing > most) best = i, most = missing;
    }
    if (most == 0) break;
    chosen.push_back(best);
    for (const std::string& item : sets[best]) ++times[item];
  }
  std::erase_if(chosen, [&](std::size_t i) {
    const bool is_needed =
        std::any_of(sets[i].begin(), sets[i].end(), [&](const auto& item) { return times[item] < 2; });
    for (const std::string& item : sets[i]) times[item] -= is_needed ? 0 : 1;
    return !is_needed;
  });
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

}  // namespace

std::vector<std::string> covered_by(const KernelSpec& spec) {
  std::vector<std::string> items = {fmt::format("{} {}", spec.name, spec.arch)};
  for (const Constant& constant : spec.config) {
    if (constant.name == "kSmemBytes") continue;  // this constant is computed from the other constants
    items.push_back(fmt::format("{} {}={}", spec.name, constant.name, kind_of(constant)));
    if (constant.name == "kElement") items.push_back(items.back() + " " + spec.arch);
  }
  return items;
}

std::vector<KernelSpec> covering_specs(std::vector<KernelSpec> specs) {
  std::vector<std::set<std::string>> sets;
  for (const KernelSpec& spec : specs) {
    const std::vector<std::string> items = covered_by(spec);
    sets.emplace_back(items.begin(), items.end());
  }
  std::vector<KernelSpec> few;
  for (const std::size_t i : cover(sets)) few.push_back(std::move(specs[i]));
  return few;
}

}  // namespace attend::cuda
