// How far one result of these lessons is from another.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

/// Largest |a - b| of as many numbers; infinite where one of them is NaN, which no comparison would notice.
inline float largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  float largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const float difference = std::abs(a[i] - b[i]);
    if (std::isnan(difference)) return INFINITY;
    largest = std::max(largest, difference);
  }
  return largest;
}
