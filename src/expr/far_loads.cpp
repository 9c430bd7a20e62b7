#include "expr/far_loads.hpp"

#include <algorithm>
#include <cmath>

#include "expr/bounds.hpp"
#include "expr/spread.hpp"

namespace attend::expr {
namespace {

constexpr double kMostIndex = 0x1p30;  // larger than any number of a row or key, but small enough that sums do not wrap
constexpr std::int64_t kFarthest = std::int64_t{1} << 20;
// upper limit, because each such load needs a register, and the kernels have few free registers
constexpr std::size_t kMostFarLoads = 2;

/// Returns whether the subscript is constant for all pairs with q - k >= distance. If `is_behind` is set, uses k - q
/// instead of q - k.
bool is_one_from(const Graph& graph, Id subscript, std::int64_t distance, bool is_behind) {
  Ranges ranges;
  ranges.fill({0, kMostIndex});
  ranges[static_cast<std::size_t>(Variable::kScore)] = {-INFINITY, INFINITY, true};
  const Interval far = {static_cast<double>(distance), kMostIndex};
  ranges[static_cast<std::size_t>(Variable::kRow)] = is_behind ? Interval::of(0) : far;
  ranges[static_cast<std::size_t>(Variable::kKey)] = is_behind ? far : Interval::of(0);
  const Interval anything = {-INFINITY, INFINITY, true};
  return bounds_of(graph, subscript, ranges, [&](auto...) { return anything; }).is_one();
}

/// Returns the smallest distance d such that the subscript is constant for all distances >= d. Returns kNowhere if
/// there is no such d.
std::int64_t first_far(const Graph& graph, Id subscript, bool is_behind) {
  const auto is_one = [&](std::int64_t distance) { return is_one_from(graph, subscript, distance, is_behind); };
  if (!is_one(kFarthest)) return FarEnds::kNowhere;
  // A binary search finds the smallest distance, because a subscript that is constant from one distance on is also
  // constant from every larger distance on.
  std::int64_t far = kFarthest, near = -1;
  while (far - near > 1) {
    const std::int64_t middle = near + (far - near) / 2;
    (is_one(middle) ? far : near) = middle;
  }
  return far;
}

/// Returns whether the subscripts have the same values for all pairs of a row and a key of a head.
bool are_uniform(const Graph& graph, std::span<const Id> subscripts) {
  return subscripts.empty() || spread_of(graph, subscripts) == Spread::kUniform;
}

}  // namespace

FarEnds FarEnds::beside(const FarEnds& other) const {
  return {std::max(from, other.from), std::min(until, other.until)};
}

FarEnds far_ends_of(const Graph& graph, std::span<const Id> subscripts) {
  FarEnds ends = {0, 0};
  for (const Id& subscript : subscripts) {
    const Spread spread = spread_of(graph, std::span(&subscript, 1));
    if (spread == Spread::kUniform) continue;
    if (spread != Spread::kDistance) return {};
    ends = ends.beside({first_far(graph, subscript, false), -first_far(graph, subscript, true)});
  }
  return ends;
}

FarLoads far_loads_of(const Graph& graph, Id root) {
  const std::vector<bool> needed = graph.needed_by(root);
  FarLoads all;
  for (std::size_t n = 0; n < needed.size(); ++n) {
    const auto id = static_cast<Id>(n);
    const Node& node = graph[id];
    if (!needed[n] || node.op != Op::kLoad) continue;
    const std::span<const Id> subscripts = {node.args.data(), node.num_args()};
    if (are_uniform(graph, subscripts)) continue;
    const FarEnds own = far_ends_of(graph, subscripts);
    if (!own.exist() || all.loads.size() == kMostFarLoads) {
      all.are_all = false;
      continue;
    }
    all.ends = all.loads.empty() ? own : all.ends.beside(own);
    all.loads.push_back(id);
  }
  return all;
}

}  // namespace attend::expr
