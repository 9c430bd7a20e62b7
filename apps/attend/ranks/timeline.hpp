// Times of each step on the ranks of a ring, and a drawing of these times.
#pragma once

#include <string>
#include <vector>

#include "ring/transport/timeline.hpp"

namespace attend::cli {

/// One step of a rank. Times are in milliseconds.
struct StepTimes {
  int step = 0;
  double compute = 0;
  double exchange = 0;  ///< duration of the exchange, including the time during which the rank also computed
  double exposed = 0;   ///< time of the exchange during which the rank computed nothing
};

/// Returns the steps of one rank, ordered by step number.
[[nodiscard]] std::vector<StepTimes> step_times(const std::vector<ring::Span>& spans);

/// Combines the steps of all ranks. Each time of a step is the largest time of any rank.
[[nodiscard]] std::vector<StepTimes> slowest(const std::vector<std::vector<StepTimes>>& ranks);

/// Draws two bars for each rank on a common time axis of `columns` characters. The upper bar shows computation. Its
/// characters are the last digit of the step's number. The lower bar shows transfers as minus signs. If two spans
/// overlap, the later span is drawn.
[[nodiscard]] std::string timeline_text(const std::vector<std::vector<ring::Span>>& ranks, int columns);

}  // namespace attend::cli
