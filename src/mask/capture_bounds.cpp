#include "mask/capture_bounds.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "cpu/parallel.hpp"

namespace attend::mask {
namespace {

using expr::Interval;

constexpr std::int64_t kBlock = 64;

/// Returns bounds that contain every element of a type.
Interval any_of(expr::Type type) {
  if (type == expr::Type::kBool) return {0, 1};
  if (type == expr::Type::kInt) {
    return {std::numeric_limits<std::int32_t>::min(), std::numeric_limits<std::int32_t>::max()};
  }
  return {-std::numeric_limits<double>::infinity(), std::numeric_limits<double>::infinity(), true};
}

/// Bounds of an empty set, the initial value when bounds are computed.
constexpr Interval kEmpty = {std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity()};

/// Returns bounds of `count` elements, starting with number `first`, in a row that begins at `offset`.
Interval of_elements(const cpu::CapturedView& view, expr::Type type, std::int64_t offset, std::int64_t first,
                     std::int64_t count) {
  const std::int64_t stride = view.rank == 0 ? 0 : view.stride[view.rank - 1];
  Interval all = kEmpty;
  cpu::with_elements(view, [&](const auto& elements) {
    for (std::int64_t n = first; n < first + count; ++n) {
      const std::int64_t at = offset + n * stride;
      all = all.hull(Interval::of(type == expr::Type::kFloat  ? double{elements.as_float(at)}
                                  : type == expr::Type::kBool ? static_cast<double>(elements.as_bool(at))
                                                              : static_cast<double>(elements.as_int(at))));
    }
  });
  return all;
}

}  // namespace

CaptureBounds::Levels CaptureBounds::levels_of(const expr::Capture& capture, const cpu::CapturedView& view) {
  // upper limit; the bounds of 2^20 blocks take 24 MiB, and those of all higher levels together take another 24 MiB
  constexpr std::int64_t kMostBlocks = 1 << 20;
  Levels levels;
  levels.of_all = any_of(capture.type);
  const std::int32_t last = view.rank - 1;
  for (std::int32_t d = 0; d < last; ++d) levels.extents.push_back(view.extent[d]);
  const std::int64_t columns = view.rank == 0 ? 1 : view.extent[last];
  std::int64_t blocks = (columns - 1) / kBlock + 1;
  for (const std::int64_t extent : levels.extents) {
    if (extent > kMostBlocks / levels.rows) return levels;
    levels.rows *= extent;
  }
  if (blocks > kMostBlocks / levels.rows) return levels;
  std::vector<Interval> of_level(static_cast<std::size_t>(levels.rows * blocks));
  levels.of_all = kEmpty;
  for (std::int64_t row = 0; row < levels.rows; ++row) {
    std::int64_t offset = 0;
    for (std::int64_t rest = row, d = last; d-- > 0; rest /= view.extent[d]) {
      offset += rest % view.extent[d] * view.stride[d];
    }
    for (std::int64_t block = 0; block < blocks; ++block) {
      if (block % 1024 == row % 1024) cpu::end_if_interrupted();
      Interval& own = of_level[static_cast<std::size_t>(row * blocks + block)];
      own = of_elements(view, capture.type, offset, block * kBlock, std::min(kBlock, columns - block * kBlock));
      levels.of_all = levels.of_all.hull(own);
    }
  }
  levels.of_blocks.push_back(std::move(of_level));
  while (blocks > 1) {
    const std::int64_t pairs = (blocks + 1) / 2;
    std::vector<Interval> of_pairs(static_cast<std::size_t>(levels.rows * pairs));
    for (std::int64_t row = 0; row < levels.rows; ++row) {
      for (std::int64_t n = 0; n < pairs; ++n) {
        const Interval* of_row = levels.of_blocks.back().data() + row * blocks;
        of_pairs[static_cast<std::size_t>(row * pairs + n)] =
            of_row[2 * n].hull(of_row[std::min(2 * n + 1, blocks - 1)]);
      }
    }
    levels.of_blocks.push_back(std::move(of_pairs));
    blocks = pairs;
  }
  return levels;
}

CaptureBounds::CaptureBounds(const expr::Graph& graph, expr::Id result, std::span<const cpu::CapturedView> captures)
    : captures_(captures.size()) {
  const std::vector<bool> needed = graph.needed_by(result);
  for (std::size_t id = 0; id < needed.size(); ++id) {
    const expr::Node& node = graph[static_cast<expr::Id>(id)];
    const auto which = static_cast<std::size_t>(node.which);
    if (!needed[id] || node.op != expr::Op::kLoad || !captures_[which].of_blocks.empty()) continue;
    captures_[which] = levels_of(graph.captures()[which], captures[which]);
  }
}

/// Returns bounds of a range of elements of a row. Level n has one interval for each group of 2^n blocks. On each
/// level, the function uses at most two intervals, one at each end of the range. It uses an interval only if the group
/// of the next level also contains blocks outside the range.
Interval CaptureBounds::in_row(const Levels& levels, std::int64_t row, std::int64_t first, std::int64_t last) {
  std::int64_t from = first / kBlock, to = last / kBlock;
  Interval all = kEmpty;
  for (const std::vector<Interval>& level : levels.of_blocks) {
    const Interval* of_row = level.data() + row * (static_cast<std::int64_t>(level.size()) / levels.rows);
    if (from <= to && from % 2 == 1) all = all.hull(of_row[from++]);
    if (from <= to && to % 2 == 0) all = all.hull(of_row[to--]);
    if (from > to) break;
    from /= 2, to /= 2;
  }
  return all;
}

Interval CaptureBounds::of(std::int32_t capture, std::span<const Interval> subscripts) const {
  const Levels& levels = captures_[static_cast<std::size_t>(capture)];
  if (levels.of_blocks.empty()) return levels.of_all;
  std::int64_t row = 0;
  for (std::size_t d = 0; d < levels.extents.size(); ++d) {
    if (!subscripts[d].is_one()) return levels.of_all;
    row = row * levels.extents[d] + static_cast<std::int64_t>(subscripts[d].low);
  }
  if (subscripts.empty()) return levels.of_all;
  return in_row(levels, row, static_cast<std::int64_t>(subscripts.back().low),
                static_cast<std::int64_t>(subscripts.back().high));
}

}  // namespace attend::mask
