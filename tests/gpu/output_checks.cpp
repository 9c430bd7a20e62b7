#include "gpu/output_checks.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <utility>
#include <vector>

namespace attend::test {

void expect_near(const char* name, const std::vector<double>& got, const std::vector<double>& truth, double budget) {
  ASSERT_EQ(got.size(), truth.size());
  double largest = 1e-3, error = 0;
  for (const double x : truth) largest = std::max(largest, std::isfinite(x) ? std::abs(x) : 0.0);
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (got[i] == truth[i]) continue;
    error = std::max(error, std::isfinite(got[i] - truth[i]) ? std::abs(got[i] - truth[i]) : INFINITY);
  }
  EXPECT_LE(error, budget * largest) << name;
  std::printf(" %s %.1e/%.1e", name, error, budget * largest);
}

void expect_near(const char* name, const TensorBuffer& got, const TensorBuffer& truth, double budget) {
  EXPECT_TRUE(got.gaps_intact()) << name;
  expect_near(name, got.values(), truth.values(), budget);
}

UnseenNaN UnseenNaN::of(AttentionCase c) {
  c.batch = 1, c.heads_q = c.heads_k = 2, c.seqlen_q = 512, c.seqlen_k = 768;
  UnseenNaN inputs = {make_inputs(c), make_inputs(c)};
  for (const auto& [poisoned, clean] :
       {std::pair{&inputs.poisoned.k, &inputs.clean.k}, std::pair{&inputs.poisoned.v, &inputs.clean.v}}) {
    poisoned->generate([&from = *clean](std::int64_t b, std::int64_t h, std::int64_t row, std::int64_t col) {
      return row / 256 == 1 ? NAN : from.at(b, h, row, col);
    });
  }
  return inputs;
}

void expect_left_out(const Outputs& of_poisoned, const Outputs& of_clean) {
  for (const auto& [a, b] : {std::pair{&of_poisoned.o, &of_clean.o}, std::pair{&of_poisoned.dq, &of_clean.dq},
                             std::pair{&of_poisoned.dk, &of_clean.dk}, std::pair{&of_poisoned.dv, &of_clean.dv}}) {
    const std::vector<double> x = a->values(), y = b->values();
    for (std::size_t n = 0; n < x.size(); ++n) ASSERT_NEAR(x[n], y[n], 2e-2 * (1 + std::abs(y[n]))) << n;
  }
  for (std::int64_t row = 256; row < 384; ++row) ASSERT_EQ(of_poisoned.lse.at(0, 0, row, 0), -INFINITY);
}

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
