#include "expr/far_loads.hpp"

#include <algorithm>
#include <cmath>
#include <span>

#include "expr/bounds.hpp"
#include "expr/spread.hpp"

namespace attend::expr {
namespace {

constexpr double kMostIndex = 0x1p30;  // no memory holds more rows or keys; sums with it do not wrap
constexpr std::int64_t kFarthest = std::int64_t{1} << 20;

/// Is the subscript one number wherever q - k, or k - q if `is_behind`, is `distance` or more?
bool is_one_from(const Graph& graph, Id subscript, std::int64_t extent, std::int64_t distance, bool is_behind) {
  Ranges ranges;
  ranges.fill({0, kMostIndex});
  ranges[static_cast<std::size_t>(Variable::kScore)] = {-INFINITY, INFINITY, true};
  const Interval far = {static_cast<double>(distance), kMostIndex};
  ranges[static_cast<std::size_t>(Variable::kRow)] = is_behind ? Interval::of(0) : far;
  ranges[static_cast<std::size_t>(Variable::kKey)] = is_behind ? far : Interval::of(0);
  const Interval anything = {-INFINITY, INFINITY, true};
  const Interval bounds = bounds_of(graph, subscript, ranges, [&](auto...) { return anything; });
  const double last = static_cast<double>(extent - 1);
  return !bounds.has_nan && std::clamp(bounds.low, 0.0, last) == std::clamp(bounds.high, 0.0, last);
}

/// The least distance from which it is one number; kNowhere: there is none.
std::int64_t first_far(const Graph& graph, Id subscript, std::int64_t extent, bool is_behind) {
  const auto is_one = [&](std::int64_t distance) { return is_one_from(graph, subscript, extent, distance, is_behind); };
  if (!is_one(kFarthest)) return FarLoads::kNowhere;
  std::int64_t far = kFarthest, near = -1;  // what holds from a distance on holds from all that are larger
  while (far - near > 1) {
    const std::int64_t middle = near + (far - near) / 2;
    (is_one(middle) ? far : near) = middle;
  }
  return far;
}

/// Of one load: as `all`, with it alone.
FarLoads far_load(const Graph& graph, Id id) {
  const Node& load = graph[id];
  FarLoads own = {{id}, 0, 0};
  bool has_distance = false;
  for (std::size_t n = 0; n < load.num_args(); ++n) {
    const Spread spread = spread_of(graph, std::span(&load.args[n], 1));
    if (spread == Spread::kUniform) continue;
    if (spread != Spread::kDistance) return {};
    has_distance = true;
    const std::int64_t extent = graph.captures()[static_cast<std::size_t>(load.which)].shape[n];
    own.from = std::max(own.from, first_far(graph, load.args[n], extent, false));
    const std::int64_t behind = first_far(graph, load.args[n], extent, true);
    own.until = std::min(own.until, -behind);
  }
  const bool has_end = own.from != FarLoads::kNowhere || own.until != -FarLoads::kNowhere;
  return has_distance && has_end ? own : FarLoads{};
}

}  // namespace

FarLoads far_loads_of(const Graph& graph, Id root) {
  const std::vector<bool> needed = graph.needed_by(root);
  FarLoads all;
  for (std::size_t n = 0; n < needed.size(); ++n) {
    const auto id = static_cast<Id>(n);
    if (!needed[n] || graph[id].op != Op::kLoad) continue;
    const FarLoads own = far_load(graph, id);
    if (own.loads.empty()) continue;
    all.from = all.loads.empty() ? own.from : std::max(all.from, own.from);
    all.until = all.loads.empty() ? own.until : std::min(all.until, own.until);
    all.loads.push_back(id);
  }
  return all;
}

}  // namespace attend::expr
