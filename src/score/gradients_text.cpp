#include "score/gradients_text.hpp"

#include <fmt/format.h>

#include <span>
#include <vector>

#include "expr/far_loads.hpp"
#include "expr/spread.hpp"
#include "score/held_text.hpp"

namespace attend::score {
namespace {

const char* lines_of(expr::Spread spread) {
  switch (spread) {
    case expr::Spread::kKey:
      return "kKey";
    case expr::Spread::kDistance:
      return "kDistance";
    case expr::Spread::kAny:
      return "kPair";
    default:
      return "kRow";
  }
}

/// Returns the limits of q - k beyond which all gradients are the same.
expr::FarEnds ends_of(const expr::ScoreProgram& program) {
  expr::FarEnds all = {0, 0};
  for (const expr::CaptureLoad& load : program.loads) {
    const bool is_uniform = expr::spread_of(program.graph, std::span(&load.derivative, 1)) == expr::Spread::kUniform;
    const expr::FarEnds own = expr::far_ends_of(program.graph, std::span(load.subscripts).first(load.rank));
    all = all.beside(is_uniform ? own : expr::FarEnds{});
  }
  return all;
}

}  // namespace

std::string gradients_text(const expr::ScoreProgram& program) {
  const std::vector<expr::CaptureLoad>& loads = program.loads;
  std::string locals, results, additions;
  for (std::size_t n = 0; n < loads.size(); ++n) {
    locals += fmt::format(" float d{};", n);
    results += fmt::format(", d{}", n);
    std::string offset = "attend::int64{0}";
    for (std::size_t d = 0; d < loads[n].rank; ++d) {
      locals += fmt::format(" int i{}_{};", n, d);
      results += fmt::format(", i{}_{}", n, d);
      const std::string extent = fmt::format("captures.template extent<{}, {}>()", loads[n].capture, d);
      offset = fmt::format("({0} * {1} + score_math::within(i{2}_{3}, {1}))", offset, extent, n, d);
    }
    additions += fmt::format("    add({}, {}, d{});\n", loads[n].capture, offset, n);
  }
  const std::vector<expr::Id> nodes = expr::ScoreProgram::results_of(loads);
  const expr::FarEnds ends = ends_of(program);
  return fmt::format(
      "  static constexpr GradientLines kLines = GradientLines::{};\n"
      "  static constexpr int kSameFrom = {}, kSameUntil = {};\n"
      "  template <class Add>\n"
      "  static __device__ __forceinline__ void gradients(const ScorePoint<float>& at, const CapturedTensor* "
      "captured,\n"
      "                                                   const Add& add) {{\n"
      "    const Tensors captures{{captured}};\n   {}\n    ScoreGradientsCode::evaluate(at, captures{});\n{}  }}\n",
      lines_of(expr::spread_of(program.graph, nodes)), as_int(ends.from), as_int(ends.until), locals, results,
      additions);
}

}  // namespace attend::score
