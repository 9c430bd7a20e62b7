// Times of each step of a ring's ranks, and bars that show them.
#pragma once

#include <string>
#include <vector>

#include "ring/transport/timeline.hpp"

namespace attend::cli {

/// One step of a rank, in milliseconds.
struct StepTimes {
  int step = 0;
  double compute = 0;
  double exchange = 0;  ///< from beginning to end, hidden behind computation or not
  double exposed = 0;   ///< the part of the exchange during which nothing was computed
};

/// Returns the steps of one rank, ordered by number.
[[nodiscard]] std::vector<StepTimes> step_times(const std::vector<ring::Span>& spans);

/// Returns, for each step, the largest times of any rank.
[[nodiscard]] std::vector<StepTimes> slowest(const std::vector<std::vector<StepTimes>>& ranks);

/// Draws two bars per rank over one time axis, `columns` wide: computation, shown by the last digit of the step's
/// number, and below it transfers (-). If two parts overlap, the later one is visible.
[[nodiscard]] std::string timeline_text(const std::vector<std::vector<ring::Span>>& ranks, int columns);

}  // namespace attend::cli
