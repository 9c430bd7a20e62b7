// What the ranks of a ring did when: times of each step, and bars that show them.
#pragma once

#include <string>
#include <vector>

#include "ring/transport/timeline.hpp"

namespace attend::cli {

/// One step of a rank, in milliseconds.
struct StepTimes {
  int step = 0;
  double compute = 0;
  double exchange = 0;  ///< from its beginning to its end, beside computation or not
  double exposed = 0;   ///< of the exchange, while nothing was computed
};

/// The steps of one rank, by number.
[[nodiscard]] std::vector<StepTimes> step_times(const std::vector<ring::Span>& spans);

/// Of each step the largest times of any rank.
[[nodiscard]] std::vector<StepTimes> slowest(const std::vector<std::vector<StepTimes>>& ranks);

/// Two bars a rank over one axis of time, `columns` wide: what was computed, by the step's last digit, and below it
/// what travelled (-). Where bars touch, the later one shows.
[[nodiscard]] std::string timeline_text(const std::vector<std::vector<ring::Span>>& ranks, int columns);

}  // namespace attend::cli
