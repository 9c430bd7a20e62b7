// Tests ForwardCall, BackwardCall and their Plans: which code compiles, and that all forms of a call give the same
// result.
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "support/expect.hpp"
#include "support/option_cases.hpp"

namespace attend::test {
namespace {

// The memory of inputs may be const. The memory of outputs must not be const.
static_assert(std::is_convertible_v<Tensor, ConstTensor>);
static_assert(!std::is_constructible_v<Tensor, ConstTensor>);
static_assert(std::is_same_v<decltype(Tensor::bhsd(std::declval<const float*>(), DType::kF32, {})), ConstTensor>);
static_assert(std::is_same_v<decltype(Tensor::bshd(std::declval<const void*>(), DType::kF32, {})), ConstTensor>);
static_assert(std::is_same_v<decltype(ConstTensor::bhsd(std::declval<float*>(), DType::kF32, {})), ConstTensor>);
static_assert(std::is_same_v<decltype(Tensor::bhsd(std::declval<float*>(), DType::kF32, {})), Tensor>);

template <class View>
concept CanBeO = requires(View t) {
  ForwardCall{.q = t, .k = t, .v = t, .o = t};
};
template <class View>
concept CanBeLseOfForward = requires(View t, Tensor o) {
  ForwardCall{.q = t, .k = t, .v = t, .o = o, .lse = t};
};
template <class View>
concept CanBeGradient = requires(View t) {
  BackwardCall{.q = t, .k = t, .v = t, .o = t, .lse = t, .dout = t, .dlse = t, .dq = t, .dk = t, .dv = t};
};
template <class Out, class In>
concept IsBackward = requires(In t, Out d) {
  BackwardCall{.q = t, .k = t, .v = t, .o = t, .lse = t, .dout = t, .dq = d, .dk = d, .dv = d, .dbias = d, .dsinks = d};
  Params{.alibi_slopes = t, .bias = t, .mask = t, .sinks = t};
};
static_assert(CanBeO<Tensor> && !CanBeO<ConstTensor>);
static_assert(CanBeLseOfForward<Tensor> && !CanBeLseOfForward<ConstTensor>);
static_assert(CanBeGradient<Tensor> && !CanBeGradient<ConstTensor>);
static_assert(IsBackward<Tensor, ConstTensor> && IsBackward<Tensor, Tensor> && !IsBackward<ConstTensor, Tensor>);

/// Runs forward and backward with the functions that take separate arguments.
Outputs run_in_a_row(const Inputs& in) {
  Outputs out = make_outputs(in);
  const Params params = in.params("auto");
  BackwardExtras extras;
  if (in.dlse) extras.dlse = in.dlse->view();
  if (out.dbias) extras.dbias = out.dbias->view();
  if (out.dsinks) extras.dsinks = out.dsinks->view();
  forward(in.q.view(), in.k.view(), in.v.view(), out.o.view(), &out.lse.view(), params);
  backward(in.dout.view(), in.q.view(), in.k.view(), in.v.view(), out.o.view(), out.lse.view(), out.dq.view(),
           out.dk.view(), out.dv.view(), params, nullptr, extras);
  return out;
}

std::string message_of(const auto& run) {
  try {
    run();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(Calls, ConstInputsCompute) {
  const std::array<float, 2> q = {1, 0}, k = {0, 1}, v = {3, 4};  // with a single key, o equals v of this key
  std::array<float, 2> o = {};
  const auto view = [](auto& data) { return Tensor::bhsd(data.data(), DType::kF32, {1, 1, 1, 2}); };
  forward({.q = view(q), .k = view(k), .v = view(v), .o = view(o)});
  EXPECT_EQ(o, v);
  o = {};
  forward(view(q), view(k), view(v), view(o));
  EXPECT_EQ(o, v);
}

TEST(Calls, GiveTheBitsOfTheArgumentsInARowWithEveryOption) {
  for (const AttentionCase& c : option_cases(DType::kF32)) {
    SCOPED_TRACE(describe(c));
    const Inputs in = make_inputs(c);
    const Outputs want = run_in_a_row(in);
    const Outputs called = make_outputs(in), planned = make_outputs(in);
    forward(forward_of(in, called));
    backward(backward_of(in, called));
    expect_same_bits(called, want);
    const Plan forward_plan = plan(forward_of(in, planned)), backward_plan = plan(backward_of(in, planned));
    forward_plan.prepare();
    backward_plan.prepare();
    forward_plan.run();
    backward_plan.run();
    expect_same_bits(planned, want);
  }
}

TEST(Plans, RunAgainOnWhatTheTensorsHoldThen) {
  const Inputs in = make_inputs({.seqlen_q = 3, .seqlen_k = 5, .seed = 3});
  const Outputs out = make_outputs(in), again = make_outputs(in);
  const Plan first = plan(forward_of(in, out));
  const Plan copy = first;
  first.run();
  const std::vector<std::byte> once = out.o.bytes();
  copy.run();
  EXPECT_EQ(out.o.bytes(), once);
  in.q.fill(0.25);
  first.run({nullptr, 0});
  forward(forward_of(in, again));
  EXPECT_NE(out.o.bytes(), once);
  expect_same_bits("o", out.o, again.o);
}

TEST(Plans, ReadOffsetsAndSeedsOfTheHostAtEachRun) {
  const Inputs in =
      make_inputs({.heads_q = 2, .heads_k = 2, .varlen_q = {3, 4}, .varlen_k = {5, 2}, .dropout_p = 0.5, .seed = 4});
  std::array<std::uint64_t, 2> state = {7, 9};
  const Outputs out = make_outputs(in), want = make_outputs(in);
  ForwardCall call = forward_of(in, out);
  call.params.philox_state = state.data();
  const Plan planned = plan(call);
  planned.run();
  const std::vector<std::byte> once = out.o.bytes();
  state = {8, 9};
  planned.run();
  EXPECT_NE(out.o.bytes(), once);
  call.o = want.o.view();
  call.params.philox_state = nullptr;
  call.params.seed = 8;
  call.params.offset = 9;
  forward(call);
  expect_same_bits("o", out.o, want.o);
  in.cu_k.get()[1] = 9;
  EXPECT_EQ(message_of([&] { planned.run(); }), message_of([&] { forward(call); }));
}

TEST(Plans, OutliveTheNameOfTheBackend) {
  const Inputs in = make_inputs({.seqlen_k = 4, .seed = 5});
  const Outputs out = make_outputs(in);
  auto name = std::make_unique<std::string>("a name that is too long for a small string");
  *name = "reference";
  const Plan planned = plan(forward_of(in, out, *name));
  name.reset();
  planned.run();
  EXPECT_EQ(planned.compute(), "reference");
  EXPECT_TRUE(std::isfinite(out.o.at(0, 0, 0, 0)));
}

void expect_same(const std::vector<Candidate>& got, const std::vector<Candidate>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].compute, want[i].compute);
    EXPECT_EQ(got[i].chosen, want[i].chosen) << got[i].compute;
    EXPECT_EQ(got[i].lack, want[i].lack) << got[i].compute;
    EXPECT_EQ(got[i].why, want[i].why) << got[i].compute;
    EXPECT_EQ(got[i].variant, want[i].variant) << got[i].compute;
    EXPECT_EQ(got[i].steps, want[i].steps) << got[i].compute;
    EXPECT_EQ(got[i].estimated_us, want[i].estimated_us) << got[i].compute;
    EXPECT_EQ(got[i].workspace_bytes, want[i].workspace_bytes) << got[i].compute;
  }
}

TEST(Plans, ExplainPrepareAndSayTheirWorkspaceAsTheFunctionsDo) {
  const Inputs in = make_inputs({.seqlen_q = 2, .seqlen_k = 3, .causal = true, .seed = 6});
  const Outputs out = make_outputs(in);
  const Params params = in.params("auto");
  const Tensor q = in.q.view(), k = in.k.view(), v = in.v.view(), o = out.o.view(), lse = out.lse.view();
  const Tensor dout = in.dout.view(), dq = out.dq.view(), dk = out.dk.view(), dv = out.dv.view();
  const Plan there = plan(forward_of(in, out)), back = plan(backward_of(in, out));
  expect_same(there.explanation(), explain_forward(q, k, v, o, &lse, params));
  expect_same(back.explanation(), explain_backward(dout, q, k, v, o, lse, dq, dk, dv, params));
  EXPECT_EQ(there.workspace_bytes(), forward_workspace_bytes(q, k, v, o, &lse, params));
  EXPECT_EQ(back.workspace_bytes(), backward_workspace_bytes(dout, q, k, v, o, lse, dq, dk, dv, params));
  prepare_forward(q, k, v, o, &lse, params);
  prepare_backward(dout, q, k, v, o, lse, dq, dk, dv, params);
  for (const Plan* planned : {&there, &back}) {
    const std::vector<Candidate> candidates = planned->explanation();
    ASSERT_EQ(candidates.size(), 3U) << "the backends of a CPU";
    for (const Candidate& c : candidates) EXPECT_EQ(c.chosen, c.compute == planned->compute());
    EXPECT_EQ(planned->compute(), "cpu");
    EXPECT_EQ(planned->workspace_bytes(), 0U);
  }
}

TEST(Plans, OfCallsThatNoBackendTakesExplainThatAndThrowTheError) {
  const Inputs in = make_inputs({.softcap = 2, .seed = 7});
  const Outputs out = make_outputs(in);
  const ForwardCall call = forward_of(in, out, "cpu_naive");
  const std::string refusal = message_of([&] { forward(call); });
  EXPECT_EQ(refusal, "softcap: 2, compute 'cpu_naive' allows 0");
  const Plan planned = plan(call);
  EXPECT_EQ(message_of([&] { planned.run(); }), refusal);
  EXPECT_EQ(message_of([&] { planned.prepare(); }), refusal);
  EXPECT_EQ(message_of([&] { (void)planned.workspace_bytes(); }), refusal);
  EXPECT_EQ(message_of([&] { (void)planned.compute(); }), refusal);
  for (const Candidate& c : planned.explanation()) {
    EXPECT_FALSE(c.chosen) << c.compute;
    EXPECT_EQ(c.lack, c.compute == "cpu_naive" ? refusal : "") << c.compute;
  }
}

TEST(Plans, RefuseWrongArgumentsAtOnceByTheirNames) {
  const Inputs in = make_inputs({.seqlen_k = 2, .seed = 8});
  const Outputs out = make_outputs(in);
  ForwardCall wrong = forward_of(in, out);
  wrong.v.shape[2] = 3;
  EXPECT_EQ(message_of([&] { (void)plan(wrong); }), message_of([&] { forward(wrong); }));
  EXPECT_EQ(message_of([&] { forward(wrong); }).rfind("v: shape (1, 1, 3, 8), allowed ", 0), 0U);
  const ForwardCall unknown = forward_of(in, out, "cpv");
  EXPECT_EQ(message_of([&] { (void)plan(unknown); }), "compute: 'cpv', allowed auto, cpu, reference, cpu_naive");
}

}  // namespace
}  // namespace attend::test
