// In the `cpu` backend, every tensor may have a different float type. Autocast and half-precision residuals need this.
#include <gtest/gtest.h>

#include "dispatch/dispatch.hpp"
#include "support/expect.hpp"
#include "support/tolerances.hpp"

namespace attend::test {
namespace {

constexpr DType kF32 = DType::kF32, kF16 = DType::kF16, kBF16 = DType::kBF16;

TensorBuffer converted(const TensorBuffer& t, DType dtype) {
  return made(dtype, t.shape(), [&](auto b, auto h, auto row, auto col) { return t.at(b, h, row, col); });
}

struct Mix {
  DType q, k, v, o, dout, dq, dk, dv;
};

class Mixed : public testing::TestWithParam<Mix> {};

INSTANTIATE_TEST_SUITE_P(Cpu, Mixed,
                         testing::Values(Mix{kF32, kF32, kF32, kBF16, kBF16, kF32, kF32, kF32},
                                         Mix{kBF16, kBF16, kBF16, kF32, kF32, kBF16, kBF16, kBF16},
                                         Mix{kF32, kBF16, kF16, kF32, kF16, kBF16, kF32, kF16},
                                         Mix{kF16, kF32, kBF16, kBF16, kF32, kF16, kBF16, kF32},
                                         Mix{kBF16, kF16, kF32, kF16, kBF16, kF32, kF16, kBF16}));

TEST_P(Mixed, GoesToTheFastBackendAndIsRight) {
  const Mix& mix = GetParam();
  for (const double dropout_p : {0.0, 0.4}) {
    Inputs in = make_inputs({.batch = 2,
                             .heads_q = 4,
                             .heads_k = 2,
                             .seqlen_q = 70,
                             .seqlen_k = 150,
                             .head_dim = 24,
                             .head_dim_v = 40,
                             .causal = true,
                             .dropout_p = dropout_p,
                             .seed = 61});
    in.q = converted(in.q, mix.q);
    in.k = converted(in.k, mix.k);
    in.v = converted(in.v, mix.v);
    in.dout = converted(in.dout, mix.dout);
    Outputs out = make_outputs(in);
    out.o = TensorBuffer(mix.o, out.o.shape());
    out.dq = TensorBuffer(mix.dq, out.dq.shape());
    out.dk = TensorBuffer(mix.dk, out.dk.shape());
    out.dv = TensorBuffer(mix.dv, out.dv.shape());
    const core::Problem problem =
        core::make_backward_problem(in.dout.view(), in.q.view(), in.k.view(), in.v.view(), out.o.view(), out.lse.view(),
                                    out.dq.view(), out.dk.view(), out.dv.view(), in.params("auto"), {});
    EXPECT_STREQ(dispatch::choose("auto", problem).name, "cpu");
    run_forward(in, out, "cpu");
    run_backward(in, out, "cpu");
    const Outputs truth = run(as_f64(in), "reference");
    const auto tolerance = [](DType stored) { return 2 * property_tolerance(stored); };
    expect_near("o", out.o.values(), truth.o.values(), tolerance(mix.o));
    expect_near("lse", out.lse.values(), truth.lse.values(), tolerance(kF32));
    // Backward computes delta from the stored o, so the dtype of o limits the accuracy.
    expect_near("dq", out.dq.values(), truth.dq.values(), std::max(tolerance(mix.dq), tolerance(mix.o)));
    expect_near("dk", out.dk.values(), truth.dk.values(), std::max(tolerance(mix.dk), tolerance(mix.o)));
    expect_near("dv", out.dv.values(), truth.dv.values(), tolerance(mix.dv));
  }
}

// Gradients of optional inputs may have any float type, including f64. The optional inputs themselves must not be f64.
TEST(MixedWithF64, GradientsOfOptionsMayBe) {
  const Inputs in = make_inputs({.batch = 2,
                                 .heads_q = 4,
                                 .heads_k = 2,
                                 .seqlen_q = 70,
                                 .seqlen_k = 150,
                                 .bias = Broadcast{true, false, false},
                                 .sinks = true,
                                 .seed = 63});
  Outputs out = make_outputs(in);
  out.dbias = TensorBuffer(DType::kF64, in.bias->shape());
  out.dsinks = TensorBuffer(DType::kF64, in.sinks->shape());
  run_forward(in, out, "cpu");
  run_backward(in, out, "cpu");
  expect_near(out, run(as_f64(in), "reference"), 2 * property_tolerance(kF32));
}

TEST(MixedWithF64, IsLeftToTheReferenceByName) {
  const Inputs in = make_inputs({.seqlen_q = 3, .seqlen_k = 4, .seed = 62});
  const TensorBuffer o(DType::kF64, {1, 1, 3, 8});
  try {
    forward(in.q.view(), in.k.view(), in.v.view(), o.view(), nullptr, {.compute = "cpu"});
    ADD_FAILURE() << "not refused";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "o: dtype f64, allowed with compute 'cpu': f32, f16, bf16");
  }
}

}  // namespace
}  // namespace attend::test
