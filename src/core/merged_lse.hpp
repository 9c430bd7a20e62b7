// Merges two results of one row over different keys by their log-sum-exp, in float64. Kernels merge in float32:
// kernels/attention/merge_rows.cuh.
//
//   lse = log(exp(a) + exp(b)),   o = exp(a - lse) o_a + exp(b - lse) o_b
//
// Source: Milakov & Gimelshein, Online normalizer calculation for softmax (2018), section 3.1
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

namespace attend::core {

/// The merged lse, and the weights of the two results. In a result with lse = -inf the row saw no key, so the weight is
/// 0. If neither saw a key, lse = -inf and both weights are 0. If one lse is NaN, all three numbers are NaN.
struct MergedLse {
  double lse;
  double weight_a;
  double weight_b;
};

/// Merges the lse values a and b. Their difference must not overflow.
[[nodiscard]] inline MergedLse merge_lse(double a, double b) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (std::isnan(a) || std::isnan(b)) return {a + b, a + b, a + b};
  const double high = std::max(a, b);
  if (high == -kInfinity) return {-kInfinity, 0, 0};
  if (a == b && a == kInfinity) return {kInfinity, 0.5, 0.5};
  const double lse = high + std::log1p(std::exp(std::min(a, b) - high));
  // The last line would compute inf - inf, which is NaN.
  if (lse == kInfinity) return {lse, a == lse ? 1.0 : 0.0, b == lse ? 1.0 : 0.0};
  return {lse, std::exp(a - lse), std::exp(b - lse)};
}

}  // namespace attend::core
