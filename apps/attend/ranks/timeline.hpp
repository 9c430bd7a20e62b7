// Times of each step on the ranks of a ring, and bars that display them.
#pragma once

#include <string>
#include <vector>

#include "ring/transport/timeline.hpp"

namespace attend::cli {

/// One step of a rank. Times are in milliseconds.
struct StepTimes {
  int step = 0;
  double compute = 0;
  double exchange = 0;  ///< from its begin to its end, including time that computation hides
  double exposed = 0;   ///< time of the exchange during which nothing was computed
};

/// Returns the steps of one rank, ordered by step number.
[[nodiscard]] std::vector<StepTimes> step_times(const std::vector<ring::Span>& spans);

/// Returns, for each step, the largest time of any rank for each field.
[[nodiscard]] std::vector<StepTimes> slowest(const std::vector<std::vector<StepTimes>>& ranks);

/// Draws two bars for each rank on a common time axis of `columns` characters. The upper bar shows computation, by the
/// last digit of the step's number. The lower bar shows transfers (-). If two spans overlap, the later one is visible.
[[nodiscard]] std::string timeline_text(const std::vector<std::vector<ring::Span>>& ranks, int columns);

}  // namespace attend::cli
