// Compares results of these lessons.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

/// Returns the largest |a - b| of two vectors of the same size, or infinity if a difference is NaN, because comparisons
/// ignore NaN.
inline float largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  float largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const float difference = std::abs(a[i] - b[i]);
    if (std::isnan(difference)) return INFINITY;
    largest = std::max(largest, difference);
  }
  return largest;
}
