// Tests gradients under heavy dropout, where the terms of a row may cancel. Also tests values that a dropped entry must
// not affect.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <limits>

#include "support/expect.hpp"

namespace attend::test {
namespace {

class HeavyDropout : public testing::TestWithParam<DType> {};

INSTANTIATE_TEST_SUITE_P(Cpu, HeavyDropout, testing::Values(DType::kF16, DType::kBF16),
                         [](const auto& test) { return std::string(dtype_name(test.param)); });

/// Returns inputs in which each row sees one key. The correct dq and dk are 0, but only if delta is computed without
/// rounding o.
Inputs one_key(DType dtype) {
  return make_inputs({.dtype = dtype,
                      .heads_q = 4,
                      .heads_k = 2,
                      .seqlen_q = 200,
                      .seqlen_k = 200,
                      .head_dim = 32,
                      .head_dim_v = 64,
                      .window_left = 0,
                      .window_right = 0,
                      .dropout_p = 0.9,
                      .seed = 51});
}

TEST_P(HeavyDropout, RowsOfOneKeyHaveNoGradient) {
  for (const int threads : {1, 3}) {  // one thread divides the work by head, three threads divide it by tile
    set_cpu_threads(threads);
    const Outputs out = run(one_key(GetParam()), "cpu");
    const double dq = largest_magnitude(out.dq.values()), dk = largest_magnitude(out.dk.values());
    std::printf("%d threads: |dq| <= %.3g, |dk| <= %.3g, allowed 1e-4\n", threads, dq, dk);
    EXPECT_LE(dq, 1e-4);
    EXPECT_LE(dk, 1e-4);
  }
  set_cpu_threads(0);
}

// Each row sees few keys, and most of them are dropped. If delta used the rounded o, the error of dq would be many
// times its rounding error.
TEST_P(HeavyDropout, FewKeysStayWithinTheirOwnRounding) {
  AttentionCase c = one_key(GetParam()).options;
  c.window_left = 2;
  c.window_right = 1;
  c.dlse = true;
  const Inputs in = make_inputs(c);
  const Outputs out = run(in, "cpu");
  const Outputs truth = run(as_f64(in), "reference");
  const double roundoff = GetParam() == DType::kF16 ? 0x1p-11 : 0x1p-8;
  expect_near("dq", out.dq.values(), truth.dq.values(), roundoff);
  expect_near("dk", out.dk.values(), truth.dk.values(), roundoff);
}

// o and lse include other keys, as if the keys were spread over several devices. Backward must then use delta = <dout,
// o>.
TEST_P(HeavyDropout, MergedResultsAreTakenAtTheirWord) {
  const Inputs in = one_key(GetParam());
  const Outputs out = make_outputs(in);
  run_forward(in, out, "cpu");
  out.o.generate([&](auto b, auto h, auto row, auto col) { return 0.25 * out.o.at(b, h, row, col) + 1.0; });
  out.lse.generate([&](auto b, auto h, auto row, auto) { return out.lse.at(b, h, row, 0) + 1.0; });
  run_backward(in, out, "cpu");
  Outputs truth = make_outputs(as_f64(in));
  truth.o = out.o;
  truth.lse = out.lse;
  run_backward(as_f64(in), truth, "reference");
  expect_near("dq", out.dq.values(), truth.dq.values(), GetParam() == DType::kF16 ? 0x1p-9 : 0x1p-6);
}

// A dropped entry must not read its value or add to dv, even in a row whose scores are NaN.
TEST(DroppedEntries, OfANaNRowLeaveDvAlone) {
  const Inputs in =
      make_inputs({.seqlen_q = 40, .seqlen_k = 33, .head_dim = 8, .head_dim_v = 8, .dropout_p = 0.5, .seed = 52});
  in.q.set(0, 0, 17, 3, std::numeric_limits<double>::quiet_NaN());
  for (const char* compute : {"cpu", "reference"}) {
    const Outputs out = run(in, compute);
    std::int64_t finite = 0;
    for (std::int64_t key = 0; key < 33; ++key) finite += std::isfinite(out.dv.at(0, 0, key, 0));
    std::printf("%s: %lld of 33 keys are dropped in the NaN row\n", compute, static_cast<long long>(finite));
    EXPECT_GT(finite, 5) << compute;
    EXPECT_LT(finite, 28) << compute;
    for (std::int64_t key = 0; key < 33; ++key) EXPECT_TRUE(std::isnan(out.dk.at(0, 0, key, 0))) << compute;
  }
}

}  // namespace
}  // namespace attend::test
