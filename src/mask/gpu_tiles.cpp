#include "mask/gpu_tiles.hpp"

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <vector>

#include "attend/error.hpp"
#include "cuda/masks/make_tiles.hpp"
#include "expr/print.hpp"
#include "expr/print_bounds.hpp"

namespace attend::mask {
namespace {

using expr::Id;
using expr::Node;
using expr::Op;
using expr::Variable;

/// Returns whether the value may differ between the rows or keys of a tile.
bool asks_for_row_or_key(const expr::Graph& graph, Id id) {
  const std::vector<bool> needed = graph.needed_by(id);
  for (std::size_t n = 0; n < needed.size(); ++n) {
    const Node& node = graph[static_cast<Id>(n)];
    if (!needed[n] || node.op != Op::kVariable) continue;
    const auto which = static_cast<Variable>(node.which);
    if (which == Variable::kRow || which == Variable::kKey) return true;
  }
  return false;
}

/// Sets has_bounds of each capture. It is true if all subscripts except the last one are constant within a tile,
/// because bounds of consecutive elements are useful only then.
void set_has_bounds(const expr::Graph& graph, Id root, std::vector<core::MaskCapture>& captures) {
  const std::vector<bool> needed = graph.needed_by(root);
  for (std::size_t n = 0; n < needed.size(); ++n) {
    const Node& node = graph[static_cast<Id>(n)];
    if (!needed[n] || node.op != Op::kLoad) continue;
    bool is_help = true;
    for (std::size_t d = 0; d + 1 < node.num_args(); ++d) {
      is_help = is_help && !asks_for_row_or_key(graph, node.args[d]);
    }
    if (is_help) captures[static_cast<std::size_t>(node.which)].has_bounds = true;
  }
}

}  // namespace

core::MaskProgram gpu_program(const MaskFunction::State& mask) {
  if (const std::optional<Op> op = expr::inexact_operation(mask.graph, mask.result)) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("mask: {}, allowed if the mask is made on a CPU: its last bits differ on a GPU",
                            expr::op_name(*op)));
  }
  core::MaskProgram program = {.source = expr::print_struct(mask.graph, "MaskValueCode", std::array{mask.result}) +
                                         expr::print_bounds_struct(mask.graph, "MaskBoundsCode", mask.result)};
  for (std::size_t n = 0; n < mask.captured.size(); ++n) {
    program.captures.push_back(
        {.tensor = mask.captured[n], .rank = mask.captures[n].tensor.shape.size(), .name = mask.captures[n].name});
  }
  set_has_bounds(mask.graph, mask.result, program.captures);
  return program;
}

void make_on_gpu(const MaskFunction::State& mask, const BlockMaskPlace& place, core::BlockTiles& tiles,
                 double* gpu_ms) {
  cuda::make_tiles(gpu_program(mask), place.device, place.stream, tiles, gpu_ms);
}

}  // namespace attend::mask
