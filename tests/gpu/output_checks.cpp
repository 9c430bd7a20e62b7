#include "gpu/output_checks.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <vector>

namespace attend::test {
namespace {

void expect_near(const char* name, const TensorBuffer& got, const TensorBuffer& truth, double budget) {
  EXPECT_TRUE(got.gaps_intact()) << name;
  const std::vector<double> a = got.values(), b = truth.values();
  ASSERT_EQ(a.size(), b.size());
  double largest = 1e-3, error = 0;
  for (const double x : b) largest = std::max(largest, std::isfinite(x) ? std::abs(x) : 0.0);
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i]) continue;
    error = std::max(error, std::isfinite(a[i] - b[i]) ? std::abs(a[i] - b[i]) : INFINITY);
  }
  EXPECT_LE(error, budget * largest) << name;
  std::printf(" %s %.1e/%.1e", name, error, budget * largest);
}

}  // namespace

void expect_outputs_near(const Outputs& got, const Outputs& truth, double results, double lse) {
  expect_near("o", got.o, truth.o, results);
  expect_near("lse", got.lse, truth.lse, lse);
  expect_near("dq", got.dq, truth.dq, 4 * results);
  expect_near("dk", got.dk, truth.dk, 4 * results);
  expect_near("dv", got.dv, truth.dv, 4 * results);
  if (got.dsinks) expect_near("dsinks", *got.dsinks, *truth.dsinks, 4 * results);
  std::printf("\n");
}

}  // namespace attend::test
