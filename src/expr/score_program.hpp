// A score function with its derivatives and the programs that backends run. It is made once from a text.
#pragma once

#include <array>
#include <string_view>
#include <vector>

#include "expr/derivative.hpp"
#include "expr/graph.hpp"
#include "expr/row_program.hpp"

namespace attend::expr {

/// A load of floats on which the score depends.
struct CaptureLoad {
  std::int32_t capture = 0;
  std::size_t rank = 0;
  /// Integer nodes, one per dimension; their values are not yet clamped to the tensor's extents.
  std::array<Id, kMostSubscripts> subscripts = {};
  Id derivative = kNone;  ///< derivative of the score with respect to the loaded element
};

struct ScoreProgram {
  Graph graph;
  Id result = kNone;
  Id by_score = kNone;  ///< derivative of `result` with respect to the score
  Slope slope = Slope::kAny;
  std::vector<CaptureLoad> loads;
  RowProgram value;            ///< program that computes `result`
  RowProgram value_and_slope;  ///< program that computes `result` and `by_score`

  /// Parses a text. Throws Error (kInvalidArgument), whose one-line text begins with `argument` (see parse()).
  [[nodiscard]] static ScoreProgram of(std::string_view argument, std::string_view text, std::vector<Capture> captures);

  /// Returns the nodes whose values are needed to compute the gradients of some loads. For each load, the result has
  /// the derivative and then the subscripts.
  [[nodiscard]] static std::vector<Id> results_of(const std::vector<CaptureLoad>& some);
};

}  // namespace attend::expr
