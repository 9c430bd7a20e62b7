// Expectations about two results: bitwise equality or nearly equal values.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "support/attention_case.hpp"

namespace attend::test {

/// Returns the largest magnitude among the finite values.
[[nodiscard]] inline double largest_magnitude(const std::vector<double>& x) {
  double largest = 0;
  for (const double value : x) largest = std::max(largest, std::isfinite(value) ? std::abs(value) : 0.0);
  return largest;
}

/// Expects |got - want| <= tolerance * scale for every element. The scale is the largest finite magnitude in `want`,
/// but at least `least`. NaN and infinities must be at the same positions in `got` and in `want`.
inline void expect_near(const char* name, const std::vector<double>& got, const std::vector<double>& want,
                        double tolerance, double least = 0) {
  ASSERT_EQ(got.size(), want.size()) << name;
  const double allowed = tolerance * std::max(largest_magnitude(want), least);
  for (std::size_t n = 0; n < got.size(); ++n) {
    const bool same_class = std::isnan(want[n])   ? std::isnan(got[n])
                            : std::isinf(want[n]) ? got[n] == want[n]
                                                  : std::abs(got[n] - want[n]) <= allowed;
    ASSERT_TRUE(same_class) << name << "[" << n << "]: got " << got[n] << ", want " << want[n] << ", allowed "
                            << allowed;
  }
}

/// Expects that the elements of both buffers have the same bytes.
inline void expect_same_bits(const char* name, const TensorBuffer& got, const TensorBuffer& want) {
  ASSERT_EQ(got.shape(), want.shape()) << name;
  if (got.bytes() == want.bytes()) return;
  const std::vector<double> a = got.values(), b = want.values();
  std::size_t differing = 0, first = a.size();
  for (std::size_t n = a.size(); n-- > 0;) {
    if (a[n] == b[n]) continue;
    ++differing;
    first = n;
  }
  ADD_FAILURE() << name << ": " << differing << " of " << a.size() << " elements differ, first [" << first
                << "]: " << (first < a.size() ? a[first] : NAN) << " and " << (first < a.size() ? b[first] : NAN);
}

inline void expect_same_bits(const Outputs& got, const Outputs& want) {
  expect_same_bits("o", got.o, want.o);
  expect_same_bits("lse", got.lse, want.lse);
  expect_same_bits("dq", got.dq, want.dq);
  expect_same_bits("dk", got.dk, want.dk);
  expect_same_bits("dv", got.dv, want.dv);
  if (want.dbias) expect_same_bits("dbias", *got.dbias, *want.dbias);
  if (want.dsinks) expect_same_bits("dsinks", *got.dsinks, *want.dsinks);
}

inline void expect_near(const Outputs& got, const Outputs& want, double tolerance) {
  expect_near("o", got.o.values(), want.o.values(), tolerance);
  expect_near("lse", got.lse.values(), want.lse.values(), tolerance);
  expect_near("dq", got.dq.values(), want.dq.values(), tolerance);
  expect_near("dk", got.dk.values(), want.dk.values(), tolerance);
  expect_near("dv", got.dv.values(), want.dv.values(), tolerance);
  if (want.dbias) expect_near("dbias", got.dbias->values(), want.dbias->values(), tolerance);
  if (want.dsinks) expect_near("dsinks", got.dsinks->values(), want.dsinks->values(), tolerance);
}

/// Returns a new dense buffer whose elements are make(b, h, row, col).
[[nodiscard]] inline TensorBuffer made(DType dtype, const Shape& shape, const TensorBuffer::Make& make) {
  TensorBuffer t(dtype, shape);
  t.generate(make);
  return t;
}

/// Returns a dense copy.
[[nodiscard]] inline TensorBuffer copy_of(const TensorBuffer& t) {
  return made(t.dtype(), t.shape(), [&](auto b, auto h, auto row, auto col) { return t.at(b, h, row, col); });
}

}  // namespace attend::test
