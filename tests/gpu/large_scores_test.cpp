// Tests large scores on GPUs. Scores are large because of a bias that all keys of a row share, or because of large
// products of q and k.
#include <cmath>
#include <cstdio>

#include "gpu/families.hpp"
#include "gpu/gpu.hpp"
#include "support/compare.hpp"
#include "support/large_scores.hpp"

namespace attend::test {
namespace {

/// Checks that each row of p sums to 1 for any bias that all keys of the row share.
void check_sums(std::string_view compute, DType dtype) {
  for (const double bias : {-1e9, 1e9, -1e7, -65504.0, -2e4}) {
    if (dtype == DType::kF16 && std::abs(bias) > 65504) continue;
    for (const bool negative_scale : {false, true}) {
      SCOPED_TRACE(testing::Message() << dtype_name(dtype) << " " << bias << " " << negative_scale);
      AttentionCase c = {};
      if (negative_scale) c.scale = -0.17;
      const Inputs in = with_common_bias(dtype, bias, c);
      ASSERT_EQ(lack_of(compute, in), "");
      expect_rows_of_p_sum_to_one(in, run(in, compute));
    }
  }
}

class SliceLargeBias : public FamilyTest {};

INSTANTIATE_TEST_SUITE_P(Families, SliceLargeBias, testing::ValuesIn(kBackwardFamilies), kFamilyName);

TEST_P(SliceLargeBias, OnAllKeysOfARowLeavesEveryRowOfPASumOfOne) {
  check_sums(GetParam(), DType::kBF16);
  check_sums(GetParam(), DType::kF16);
}

/// Elements after the end of a row must not enter any product.
TEST_P(SliceLargeBias, OnSlicesOfLongerRowsLeavesEveryRowOfPASumOfOne) {
  for (const int head_dim : {20, 36}) {
    const AttentionCase c = {.head_dim = head_dim, .head_dim_v = head_dim, .layout = CaseLayout::kSliced};
    const Inputs in = with_common_bias(DType::kBF16, -1e9, c);
    ASSERT_EQ(lack_of(GetParam(), in), "") << head_dim;
    expect_rows_of_p_sum_to_one(in, run(in, GetParam()));
  }
}

/// Runs with a causal mask and dlse. Also runs with dropout in families that support dropout together with a bias.
TEST_P(SliceLargeBias, OnAllKeysOfARowKeepsEveryResultInBudget) {
  for (const double bias : {-1e9, -65504.0}) {
    for (const double dropout_p : {0.0, 0.25}) {
      const AttentionCase c = {.causal = dropout_p == 0, .dropout_p = dropout_p, .dlse = true};
      const Inputs in = with_common_bias(DType::kBF16, bias, c);
      if (dropout_p > 0 && !lack_of(GetParam(), in).empty()) continue;
      check_backend(GetParam(), in);
    }
  }
}

class LargeScoresInFloat32 : public GpuTest {};

TEST_F(LargeScoresInFloat32, OfABiasOnAllKeysLeaveEveryRowOfPASumOfOne) {
  check_sums("simt", DType::kF32);
}

/// The parameters are the name of a float32 kernel that `auto` picks, the standard deviation of the scores, and
/// head_dim.
class LargeProducts : public GpuTest, public testing::WithParamInterface<std::tuple<const char*, int, int>> {};

INSTANTIATE_TEST_SUITE_P(Float32, LargeProducts,
                         testing::Combine(testing::Values("simt", "fa2"), testing::Values(16, 64, 256, 1024),
                                          testing::Values(64, 80)),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param)) + "_sd" +
                                  std::to_string(std::get<1>(test.param)) + "_d" +
                                  std::to_string(std::get<2>(test.param));
                         });

TEST_P(LargeProducts, ErrNoMoreThanTheStandard) {
  const auto [compute, deviation, head_dim] = GetParam();
  const Inputs in = make_inputs({.seqlen_q = 256,
                                 .seqlen_k = 256,
                                 .head_dim = head_dim,
                                 .head_dim_v = head_dim,
                                 .scale = deviation / std::sqrt(double(head_dim)),
                                 .seed = 7});
  for (const TensorCheck& check : compare_with_reference(in, compute)) {
    const Comparison& c = check.comparison;
    std::printf("%s: error %.3g, standard's %.3g\n", check.name.c_str(), c.error, c.standard);
    if (check.name != "lse") {
      EXPECT_LE(c.error, 2 * c.standard + 1e-6) << check.name;
    }
  }
}

/// In simt, a key has no effect on a row whose bias for that key is -inf.
TEST_F(LargeScoresInFloat32, UnderABiasOfMinusInfinityMayBeNaN) {
  const Inputs in = make_inputs({.seqlen_q = 5, .seqlen_k = 9, .bias = Broadcast{}, .seed = 3});
  for (std::int64_t row = 0; row < 5; ++row) in.bias->set(0, 0, row, 4, -INFINITY);
  const Outputs want = run(in, "simt");
  for (std::int64_t col = 0; col < 8; ++col) {
    in.k.set(0, 0, 4, col, NAN);
    in.v.set(0, 0, 4, col, NAN);
  }
  const Outputs out = run(in, "simt");
  expect_near("o", out.o.values(), want.o.values(), 1e-6);
  expect_near("dq", out.dq.values(), want.dq.values(), 1e-6);
  for (std::int64_t col = 0; col < 8; ++col) EXPECT_EQ(out.dk.at(0, 0, 4, col), 0);
}

/// A soft cap far above all scores must not change the results.
TEST_F(LargeScoresInFloat32, UnderAHugeSoftcapStayAsTheyAre) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const double softcap : {5e3, 1e8, 3e38}) {
      check_backend("auto", make_inputs({.dtype = dtype,
                                         .heads_q = 2,
                                         .seqlen_q = 100,
                                         .seqlen_k = 200,
                                         .head_dim = 64,
                                         .head_dim_v = 64,
                                         .softcap = softcap}));
    }
  }
}

/// A score near the lowest float is an ordinary score. Such a score must not hide the key.
TEST_F(LargeScoresInFloat32, NearTheLowestFloatHideNoKey) {
  for (const char* compute : {"simt", "fa2"}) {
    const Inputs in = make_inputs({.seqlen_q = 70, .seqlen_k = 90, .head_dim = 64, .head_dim_v = 64, .scale = 1});
    in.q.fill(2e18);
    in.k.generate([](auto, auto, auto key, auto) { return -2e18 * (1 + 0.001 * double(key % 80)); });
    const Outputs out = make_outputs(in);
    run_forward(in, out, compute);
    const Outputs truth = make_outputs(as_f64(in));
    run_forward(as_f64(in), truth, "reference");
    expect_near("o", out.o.values(), truth.o.values(), 1e-5);
    expect_near("lse", out.lse.values(), truth.lse.values(), 1e-6);
  }
}

}  // namespace
}  // namespace attend::test
