// Tests that a finite bias never hides a key, even if it is the lowest number of its type or far below large scores.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "support/expect.hpp"
#include "support/tolerances.hpp"

namespace attend::test {
namespace {

double lowest(DType dtype) {
  return dtype == DType::kF16 ? -65504.0 : dtype == DType::kBF16 ? -0x1.FEp127 : std::numeric_limits<float>::lowest();
}

class LowestBias : public testing::TestWithParam<DType> {};

INSTANTIATE_TEST_SUITE_P(Cpu, LowestBias, testing::Values(DType::kF32, DType::kBF16, DType::kF16),
                         [](const auto& test) { return std::string(dtype_name(test.param)); });

Inputs biased(DType dtype) {
  return make_inputs({.dtype = dtype,
                      .heads_q = 2,
                      .heads_k = 1,
                      .seqlen_q = 70,
                      .seqlen_k = 150,
                      .head_dim = 16,
                      .head_dim_v = 24,
                      .bias = Broadcast{},
                      .seed = 41});
}

// In head 1, every key of rows 3 and 69 has the lowest bias. Padded rows of a batch are often masked like this.
TEST_P(LowestBias, OverAWholeRowGivesTheMean) {
  const Inputs in = biased(GetParam());
  for (const std::int64_t row : {3, 69}) {
    for (std::int64_t key = 0; key < 150; ++key) in.bias->set(0, 1, row, key, lowest(GetParam()));
  }
  const Outputs out = run(in, "cpu");
  const Outputs truth = run(as_f64(in), "reference");
  expect_near("o", out.o.values(), truth.o.values(), property_tolerance(GetParam()));
  for (const std::int64_t row : {3, 69}) {
    const double want = truth.lse.at(0, 1, row, 0);
    EXPECT_NEAR(out.lse.at(0, 1, row, 0), want, std::abs(want) * 0x1p-22) << row;
    double mean = 0;
    for (std::int64_t key = 0; key < 150; ++key) mean += in.v.at(0, 0, key, 0) / 150;
    if (GetParam() == DType::kF16) continue;  // in float16 the scores are not negligible compared with -65504
    EXPECT_NEAR(out.o.at(0, 1, row, 0), mean, 0.01) << row;
  }
  for (const TensorBuffer* t : {&out.dq, &out.dk, &out.dv, &*out.dbias}) {
    for (const double x : t->values()) ASSERT_TRUE(std::isfinite(x));
  }
}

TEST_P(LowestBias, OnSomeKeysHidesJustThose) {
  const Inputs in = biased(GetParam());
  for (std::int64_t key = 10; key < 140; ++key) in.bias->set(0, 0, 7, key, lowest(GetParam()));
  expect_near(run(in, "cpu"), run(as_f64(in), "reference"), property_tolerance(GetParam()));
}

// Of two low biases the higher one must win, even if the scores that they are added to are far below zero.
TEST(LowBias, KeepsItsOrder) {
  const Inputs in = biased(DType::kF32);
  in.q.generate([](auto...) { return 1e16; });
  in.k.generate([](auto...) { return -1e16; });
  for (std::int64_t key = 0; key < 150; ++key) {
    in.bias->set(0, 0, 7, key, key == 20 ? -3.2e38 : std::numeric_limits<float>::lowest());
    in.bias->set(0, 0, 8, key, std::numeric_limits<float>::lowest());
  }
  const Outputs out = run(in, "cpu");
  for (std::int64_t col = 0; col < 24; ++col) EXPECT_EQ(out.o.at(0, 0, 7, col), in.v.at(0, 0, 20, col));
  double mean = 0;
  for (std::int64_t key = 0; key < 150; ++key) mean += in.v.at(0, 0, key, 0) / 150;
  EXPECT_NEAR(out.o.at(0, 0, 8, 0), mean, 1e-6);
}

}  // namespace
}  // namespace attend::test
