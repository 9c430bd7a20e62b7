// The element of a result that is farthest off, in units of what it may be off.
#pragma once

#include <cmath>
#include <limits>

namespace attend::test {

struct Worst {
  double error = 0, budget = 0, ratio = 0;

  /// NaN and infinities have to be what they are to be. A NaN that is none stays the worst.
  void see(double got, double want, double allowed) {
    const bool as_wanted = got == want || (std::isnan(got) && std::isnan(want));
    double off = std::abs(got - want);
    if (!std::isfinite(want) || !std::isfinite(got)) off = std::numeric_limits<double>::quiet_NaN();
    see(as_wanted ? Worst{0, allowed, 0} : Worst{off, allowed, off / allowed});
  }
  void see(const Worst& other) {
    if (!std::isnan(ratio) && !(other.ratio <= ratio)) *this = other;
  }
  [[nodiscard]] bool in_budget() const { return ratio <= 1; }
};

}  // namespace attend::test
