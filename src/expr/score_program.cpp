#include "expr/score_program.hpp"

#include <utility>

#include "expr/parse.hpp"
#include "expr/tokens.hpp"

namespace attend::expr {

ScoreProgram ScoreProgram::of(std::string_view argument, std::string_view text, std::vector<Capture> captures) {
  Function function = parse(argument, text, std::move(captures), Type::kFloat);
  ScoreProgram program;
  program.graph = std::move(function.graph);
  program.result = function.result;
  Derivatives derivatives;
  try {
    derivatives = differentiate(program.graph, program.result);
  } catch (const GraphIsFull& full) {
    refuse(argument, 1, full.what());
  }
  program.by_score = derivatives.by_score;
  program.slope = slope_of(program.graph, program.by_score);
  for (const auto& [load, derivative] : derivatives.by_loads) {
    const Node& node = program.graph[load];
    program.loads.push_back({node.which, node.num_args(), node.args, derivative});
  }
  program.value = RowProgram::of(program.graph, std::array{program.result});
  program.value_and_slope = RowProgram::of(program.graph, std::array{program.result, program.by_score});
  return program;
}

std::vector<Id> ScoreProgram::results_of(const std::vector<CaptureLoad>& some) {
  std::vector<Id> results;
  for (const CaptureLoad& load : some) {
    results.push_back(load.derivative);
    results.insert(results.end(), load.subscripts.begin(), load.subscripts.begin() + static_cast<long>(load.rank));
  }
  return results;
}

}  // namespace attend::expr
