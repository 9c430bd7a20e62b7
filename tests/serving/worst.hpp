// Finds the element of a result with the largest error relative to its allowed error.
#pragma once

#include <cmath>
#include <limits>

namespace attend::test {

struct Worst {
  double error = 0, budget = 0, ratio = 0;

  /// Compares one element. NaN and infinities must match exactly. Once an element is wrongly NaN, the ratio stays NaN.
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
