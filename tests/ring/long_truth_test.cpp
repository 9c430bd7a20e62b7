// Compares LongTruth with the reference on a short problem.
#include "ring/long_truth.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

namespace attend::test {
namespace {

double worst_error(const std::vector<double>& got, const std::vector<double>& want, std::int64_t first) {
  double worst = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    worst = std::max(worst, std::abs(got[i] - want[static_cast<std::size_t>(first) + i]));
  }
  return worst;
}

TEST(LongTruth, IsTheReference) {
  const AttentionCase c = {.dtype = DType::kBF16,
                           .heads_q = 4,
                           .heads_k = 2,
                           .seqlen_q = 192,
                           .seqlen_k = 192,
                           .head_dim = 64,
                           .head_dim_v = 64,
                           .causal = true,
                           .seed = 3};
  const Inputs in = make_inputs(c);
  const LongTruth truth(in);
  const Outputs want = run(as_f64(in), "reference");
  constexpr double kBudget = 1e-12;  // for sums of 192 terms of magnitude 1
  EXPECT_LE(worst_error(truth.o(), want.o.values(), 0), kBudget);
  std::vector<std::int64_t> all(static_cast<std::size_t>(c.seqlen_q));
  std::iota(all.begin(), all.end(), 0);
  const std::int64_t of_head = c.seqlen_q * c.head_dim;
  for (std::int64_t head = 0; head < c.heads_q; ++head) {
    EXPECT_LE(worst_error(truth.dq(head, all).first, want.dq.values(), head * of_head), kBudget) << head;
  }
  for (std::int64_t head = 0; head < c.heads_k; ++head) {
    const HeadRows keys = truth.dk_dv(head, all);
    EXPECT_LE(worst_error(keys.first, want.dk.values(), head * of_head), kBudget) << head;
    EXPECT_LE(worst_error(keys.second, want.dv.values(), head * of_head), kBudget) << head;
  }
}

}  // namespace
}  // namespace attend::test
