// Tests score functions as callers use them: refused calls, tensors of every type and layout, values that change,
// plans, threads, rows that see no key, and non-finite numbers.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "core/problem.hpp"
#include "cpu/backends.hpp"
#include "score/score_case.hpp"
#include "support/expect.hpp"
#include "support/refusal.hpp"

namespace attend::test {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

std::string refusal_of(const char* text, std::vector<ScoreCapture> captures = {}) {
  return refusal([&] { const ScoreFunction function(text, captures); });
}

TEST(ScoreFunction, IsRefusedInOneLine) {
  float numbers[8] = {};
  const ConstStridedTensor good = {.data = numbers, .shape = {2, 4}};
  const auto with = [&](auto change) {
    ConstStridedTensor t = good;
    change(t);
    return refusal_of("score + t[q][k]", {{"t", t}});
  };
  EXPECT_EQ(refusal_of("score + t[q][k]", {{"t", good}}), "");
  EXPECT_EQ(refusal_of("score +"), "score: column 8: the end, expected a number, a name or '('");
  EXPECT_EQ(refusal_of("score + table[q]"),
            "score: column 9: 'table' is not a name here, known: b, h, k, k_len, q, q_len, score");
  EXPECT_EQ(refusal_of("score + t[q]", {{"t", good}}), "score: column 9: 't' with 1 subscripts, allowed: 2");
  EXPECT_EQ(refusal_of("score", {{"q", good}}), "score: capture 'q': the name is already in use");
  EXPECT_EQ(with([](auto& t) { t.dtype = DType::kI8; }),
            "score: capture 't': dtype i8, allowed f32, f16, bf16, f64, i32, i64, bool");
  EXPECT_EQ(with([](auto& t) { t.shape = {1, 1, 1, 1, 1}; }), "score: capture 't': 5 dimensions, allowed 0 to 4");
  EXPECT_EQ(with([](auto& t) { t.stride = {1}; }),
            "score: capture 't': 1 strides, allowed one for each of 2 dimensions");
  EXPECT_EQ(with([](auto& t) { t.data = nullptr; }), "score: capture 't': null data");
  EXPECT_EQ(with([](auto& t) { t.shape = {0, 4}; }), "score: capture 't': extent 0, allowed 1 to 2147483647");
  EXPECT_EQ(with([](auto& t) {
              t.stride = {std::int64_t{1} << 61, 1};
            }),
            "score: capture 't': strides that span more than 2^62 bytes");
  std::vector<ScoreCapture> nine;
  for (char name = 'r'; name <= 'z'; ++name) nine.push_back({std::string(2, name), good});
  EXPECT_EQ(refusal_of("score", nine), "score: 9 captures, allowed at most 8");
}

/// A valid call whose score function reads two captures. Tests make it invalid.
struct FunctionCall {
  AttentionCase options = {
      .batch = 2, .heads_q = 2, .heads_k = 1, .seqlen_q = 5, .seqlen_k = 6, .head_dim = 4, .head_dim_v = 4, .seed = 3};
  Inputs in = make_inputs(options);
  Outputs out = make_outputs(in);
  std::vector<float> table = std::vector<float>(8, 0.5F), dtable = std::vector<float>(8, 7.0F);
  std::vector<std::int32_t> doc = std::vector<std::int32_t>(6, 1);
  ScoreFunction function{"doc[q] == doc[k] ? score + table[h][k] : -inf",
                         {{"table", {.data = table.data(), .shape = {2, 4}}},
                          {"doc", {.data = doc.data(), .dtype = DType::kI32, .shape = {6}}}}};
  BackwardCall call = backward_call();

  [[nodiscard]] ForwardCall forward_call() const {
    ForwardCall of_forward = forward_of(in, out);
    of_forward.params = call.params;
    return of_forward;
  }

 private:
  [[nodiscard]] BackwardCall backward_call() {
    BackwardCall of_backward = backward_of(in, out);
    of_backward.captures = {{"table", {.data = dtable.data(), .shape = {2, 4}}}};
    of_backward.params = {.score = &function};
    return of_backward;
  }
};

TEST(ScoreFunction, ItsGradientsAreRefusedInOneLine) {
  const auto with = [](auto change) {
    FunctionCall f;
    forward(f.forward_call());
    change(f, f.call.captures.front());
    const std::string message = refusal([&] { backward(f.call); });
    if (!message.empty()) {
      EXPECT_EQ(f.dtable, std::vector<float>(8, 7.0F));
    }
    return message;
  };
  EXPECT_EQ(with([](auto&, auto&) {}), "");
  EXPECT_EQ(with([](auto&, auto& g) { g.name = "tables"; }),
            "captures: 'tables', allowed the captures of params.score: table, doc");
  EXPECT_EQ(with([](auto& f, auto&) { f.call.params.score = nullptr; }),
            "captures: given, allowed with a params.score that reads some only");
  EXPECT_EQ(with([](auto& f, auto& g) { f.call.captures.push_back(g); }), "captures: 'table' twice, allowed once");
  EXPECT_EQ(with([](auto&, auto& g) { g.name = "doc"; }),
            "captures: 'doc': of dtype i32, which has no gradient, allowed captures of floats");
  EXPECT_EQ(with([](auto&, auto& g) { g.gradient.dtype = DType::kBF16; }),
            "captures: 'table': dtype bf16, allowed f32, f64");
  EXPECT_EQ(with([](auto&, auto& g) {
              g.gradient.shape = {4, 2};
            }),
            "captures: 'table': shape (4, 2, 1, 1), allowed the capture's (2, 4, 1, 1)");
  EXPECT_EQ(with([](auto&, auto& g) { g.gradient.stride = {4, -1}; }), "captures: 'table': stride -1, allowed >= 0");
  EXPECT_EQ(with([](auto&, auto& g) {
              g.gradient.stride = {0, 1};
            }),
            "captures: 'table': stride 0 in dimension 0 of an output, allowed > 0");
  EXPECT_EQ(with([](auto&, auto& g) { g.gradient.data = nullptr; }), "captures: 'table': null data");
  EXPECT_EQ(with([](auto& f, auto& g) { g.gradient.data = f.table.data(); }),
            "captures: 'table': shares memory with capture 'table', allowed a separate buffer");
  EXPECT_EQ(with([](auto& f, auto& g) { g.gradient.data = f.out.dq.view().data; }),
            "captures: 'table': shares memory with dq, allowed a separate buffer");
  EXPECT_EQ(with([](auto&, auto& g) {
              g.gradient.device = {DeviceType::kCUDA, 0};
            }),
            "captures: 'table': on cuda 0, allowed the device of q, cpu 0");
}

/// A broadcast capture may have more elements than the memory can hold. Its gradient is a dense tensor, so a gradient
/// with too many elements must be refused.
TEST(ScoreFunction, AGradientOfTooManyElementsIsRefused) {
  FunctionCall f;
  const std::vector<std::int64_t> shape(4, (std::int64_t{1} << 31) - 1);
  const ScoreFunction broadcast("score + t[q][k][h][b]",
                                {{"t", {.data = f.table.data(), .shape = shape, .stride = {0, 0, 0, 0}}}});
  f.call.params.score = &broadcast;
  ForwardCall call = f.forward_call();
  forward(call);
  f.call.captures = {{"t", {.data = f.dtable.data(), .shape = shape}}};
  EXPECT_EQ(refusal([&] { backward(f.call); }),
            "captures: 't': shape (2147483647, 2147483647, 2147483647, 2147483647) spans more than 2^62 bytes");
}

TEST(ScoreFunction, ItsTensorsLieApartFromOutputsAndOnTheDeviceOfQ) {
  FunctionCall f;
  const auto with = [&](const Tensor& t) {
    const ScoreFunction other =
        f.function.with({{"table", {.data = t.data, .shape = {2, 4}, .device = t.device}}, f.function.captures()[1]});
    ForwardCall call = f.forward_call();
    call.params.score = &other;
    return refusal([&] { forward(call); });
  };
  EXPECT_EQ(with(f.out.o.view()), "o: shares memory with capture 'table', allowed a separate buffer");
  Tensor elsewhere = f.in.q.view();
  elsewhere.device = {DeviceType::kCUDA, 1};
  EXPECT_EQ(with(elsewhere), "score: capture 'table': on cuda 1, allowed the device of q, cpu 0");
  EXPECT_EQ(with(f.in.q.view()), "");
}

TEST(ScoreFunction, IsNotForPartsOfARing) {
  FunctionCall f;
  const core::WholeLengths whole = {10, 12};
  EXPECT_EQ(refusal([&] { (void)core::make_problem(f.forward_call(), &whole); }),
            "score: given, allowed outside of a ring only");
}

TEST(ScoreFunction, NaiveHasNoGradientsOfCaptures) {
  FunctionCall f;
  f.call.params.compute = "cpu_naive";
  try {
    backward(f.call);
    FAIL() << "not refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_STREQ(error.what(), "captures: given, compute 'cpu_naive' allows none");
  }
}

AttentionCase some_case(DType dtype = DType::kF32) {
  return {.dtype = dtype,
          .batch = 2,
          .heads_q = 4,
          .heads_k = 2,
          .seqlen_q = 150,
          .seqlen_k = 170,
          .head_dim = 32,
          .head_dim_v = 32,
          .dlse = true,
          .seed = 21};
}

/// The same numbers are stored in every numeric type that can represent them, and in every layout. All must give the
/// same bits.
TEST(ScoreFunction, ReadsTensorsOfEveryTypeAndLayout) {
  const AttentionCase c = some_case();
  const Inputs in = make_inputs(c);
  std::vector<double> numbers, bits;
  for (int n = 0; n < 4 * 12; ++n) numbers.push_back(n % 5 - 2), bits.push_back(n % 3 == 0 ? 1 : 0);
  const auto result = [&](DType dtype, CaptureStrides strides, const char* compute) {
    const bool is_bool = dtype == DType::kBool;
    const ScoreCase score = {
        c, "score + float(t[h][(q + k) % 12])", {{"t", dtype, {4, 12}, is_bool ? bits : numbers, strides}}};
    return run_score(score, in, compute);
  };
  for (const char* compute : {"cpu", "reference"}) {
    const ScoreResults wanted = result(DType::kF32, CaptureStrides::kDense, compute);
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kF64, DType::kI32, DType::kI64}) {
      for (const CaptureStrides strides :
           {CaptureStrides::kDense, CaptureStrides::kSpread, CaptureStrides::kTransposed, CaptureStrides::kNegative}) {
        SCOPED_TRACE(dtype_name(dtype));
        const ScoreResults got = result(dtype, strides, compute);
        EXPECT_EQ(got.o, wanted.o);
        EXPECT_EQ(got.dq, wanted.dq);
        EXPECT_EQ(got.dk, wanted.dk);
        if (dtype == DType::kF64) {
          EXPECT_EQ(got.captures.at("t"), wanted.captures.at("t"));
        }
      }
    }
    const ScoreResults of_bools = result(DType::kBool, CaptureStrides::kTransposed, compute);
    const ScoreCase same = {c, "score + t[h][(q + k) % 12]", {{"t", DType::kF32, {4, 12}, bits}}};
    EXPECT_EQ(of_bools.o, run_score(same, in, compute).o);
  }
}

TEST(ScoreFunction, AddsNothingToWhatItLeavesAlone) {
  AttentionCase c = some_case();
  c.softcap = 2;
  const Inputs in = make_inputs(c);
  const ScoreResults with = run_score({c, "score"}, in, "cpu");
  const Outputs without = run(in, "cpu");
  EXPECT_EQ(with.o, without.o.values());
  EXPECT_EQ(with.dq, without.dq.values());
  c.softcap = 0;
  const ScoreResults as_text = run_score({c, "2 * tanh(score / 2)"}, make_inputs(c), "cpu");
  EXPECT_LE(largest_difference(as_text.o, with.o), 2e-6);
  EXPECT_LE(largest_difference(as_text.dk, with.dk), 2e-5);
}

TEST(ScoreFunction, ValuesMayChangeBetweenCallsOfAPlan) {
  FunctionCall f;
  std::optional<Plan> plan;
  {
    const ScoreFunction short_lived = f.function;
    ForwardCall call = f.forward_call();
    call.params.score = &short_lived;
    plan.emplace(attend::plan(call));
  }
  plan->run();
  const std::vector<double> first = f.out.o.values();
  f.table[1] = 9, f.doc[3] = 4;
  plan->run();
  const std::vector<double> second = f.out.o.values();
  EXPECT_NE(first, second);
  forward(f.forward_call());
  EXPECT_EQ(f.out.o.values(), second);
  const ScoreFunction fresh(f.function.text(), f.function.captures());
  ForwardCall call = f.forward_call();
  call.params.score = &fresh;
  forward(call);
  EXPECT_EQ(f.out.o.values(), second);
}

TEST(ScoreFunction, WithOtherTensorsIsTheSameText) {
  FunctionCall f;
  std::vector<float> other(10, -3.0F);
  const ScoreFunction larger =
      f.function.with({{"table", {.data = other.data(), .shape = {2, 5}}}, f.function.captures()[1]});
  EXPECT_EQ(larger.text(), f.function.text());
  EXPECT_EQ(larger.captures().front().tensor.shape, (std::vector<std::int64_t>{2, 5}));
  EXPECT_EQ(f.function.captures().front().tensor.data, f.table.data());
  EXPECT_NE(refusal([&] { (void)f.function.with({}); }), "");
}

/// One of the gradients is that of a table. Many scores contribute to each element of this gradient.
TEST(ScoreFunction, BitsDoNotDependOnThreads) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const AttentionCase c = some_case(dtype);
    const Inputs in = make_inputs(c);
    const ScoreCase score = {c, "tanh(score) + table[(q + k) % 3]", {{"table", DType::kF32, {3}, {0.5, -1, 0.25}}}};
    set_cpu_threads(1);
    const ScoreResults one = run_score(score, in, "cpu");
    for (const int threads : {2, 3, 8}) {
      set_cpu_threads(threads);
      const ScoreResults some = run_score(score, in, "cpu");
      EXPECT_EQ(some.o, one.o);
      EXPECT_EQ(some.dq, one.dq);
      EXPECT_EQ(some.dk, one.dk);
      EXPECT_EQ(some.captures, one.captures);
    }
    set_cpu_threads(0);
  }
}

TEST(ScoreFunction, RowsThatSeeNothingGiveNothing) {
  AttentionCase c = some_case();
  c.dlse = false;
  const Inputs in = make_inputs(c);
  const ScoreCase score = {c,
                           "q % 3 == 1 || k >= 168 ? -inf : score + table[q]",
                           {{"table", DType::kF32, {c.seqlen_q}, normal_values(c.seqlen_q, 4)}}};
  for (const char* compute : {"cpu", "reference", "cpu_naive"}) {
    const std::int64_t redone = cpu::parts_redone();
    const ScoreResults got = run_score(score, in, compute, std::string(compute) != "cpu_naive");
    EXPECT_EQ(cpu::parts_redone(), redone) << "tiles are enough";
    for (std::size_t n = 0; n < got.lse.size(); ++n) {
      const bool sees_none = n % static_cast<std::size_t>(c.seqlen_q) % 3 == 1;
      EXPECT_EQ(got.lse[n] == -kInf, sees_none);
      for (std::size_t d = 0; d < 32 && sees_none; ++d) {
        EXPECT_EQ(got.o[32 * n + d], 0);
        EXPECT_EQ(got.dq[32 * n + d], 0);
      }
    }
    for (const auto& [name, gradient] : got.captures) {
      for (std::size_t q = 1; q < gradient.size(); q += 3) EXPECT_EQ(gradient[q], 0);
    }
  }
}

TEST(ScoreFunction, ProblemsWithoutKeysRowsOrSequences) {
  for (const char* compute : {"cpu", "reference"}) {
    for (const auto& [batch, rows, keys] : {std::tuple{2, 0, 7}, {2, 5, 0}, {0, 5, 7}, {1, 1, 1}}) {
      AttentionCase c = some_case();
      c.batch = batch, c.seqlen_q = rows, c.seqlen_k = keys;
      const ScoreCase score = {c, "score * gain", {{"gain", DType::kF32, {}, {2}}}};
      const ScoreResults got = run_score(score, make_inputs(c), compute);
      for (const double x : got.o) EXPECT_TRUE(keys > 0 || x == 0);
      for (const double x : got.lse) EXPECT_TRUE(keys > 0 || x == -kInf);
      EXPECT_TRUE(got.captures.at("gain")[0] == 0 || rows * keys > 0);
      EXPECT_TRUE(std::isfinite(got.captures.at("gain")[0]));
    }
  }
}

/// A NaN at a hidden key must have no effect. An infinite slope on which no result depends must have no effect either.
TEST(ScoreFunction, WhatIsHiddenReachesNothing) {
  const AttentionCase c = some_case();
  Inputs in = make_inputs(c);
  const ScoreCase score = {
      c, "k == 5 || k > q + 20 ? -inf : score + gain * sqrt(max(q + 20 - k, 0))", {{"gain", DType::kF32, {}, {0.25}}}};
  const ScoreResults clean = run_score(score, in, "reference");
  for (const double poison : {std::nan(""), kInf, -kInf}) {
    for (std::int64_t d = 0; d < c.head_dim; ++d) {
      in.k.set(1, 0, 5, d, poison);
      in.v.set(1, 0, 5, d, poison);
    }
    for (const std::string compute : {"cpu", "reference", "cpu_naive"}) {
      SCOPED_TRACE(compute);
      (void)expect_close(run_score(score, in, compute, compute != "cpu_naive"), clean, 1e-5, 1e-4);
    }
  }
}

TEST(ScoreFunction, NaNReachesItsOwnRow) {
  const AttentionCase c = some_case();
  const Inputs in = make_inputs(c);
  for (const char* compute : {"cpu", "reference"}) {
    const ScoreResults got = run_score({c, "q == 3 && k == 4 ? log(0 * score - 1) : score"}, in, compute);
    for (std::size_t n = 0; n < got.lse.size(); ++n) {
      EXPECT_EQ(std::isnan(got.lse[n]), n % static_cast<std::size_t>(c.seqlen_q) == 3);
      EXPECT_EQ(std::isnan(got.o[32 * n]), n % static_cast<std::size_t>(c.seqlen_q) == 3);
    }
  }
}

/// All scores are shifted by a number so large that lse loses the logarithm of the number of keys by rounding.
TEST(ScoreFunction, ALargeShiftOfAllScoresChangesNoGradient) {
  const AttentionCase c = some_case();
  const Inputs in = make_inputs(c);
  const ScoreResults plain = run_score({c, "floor(score)"}, in, "cpu");
  const ScoreResults shifted = run_score({c, "floor(score) - 1e6"}, in, "cpu");
  EXPECT_LE(largest_difference(plain.o, shifted.o), 1e-6);
  EXPECT_LE(largest_difference(plain.dv, shifted.dv), 1e-4 * largest_magnitude(plain.dv));
}

TEST(ScoreFunction, ABiasThatHidesAKeyIsNotUndone) {
  AttentionCase c = some_case();
  c.bias = Broadcast{};
  const Inputs in = make_inputs(c);
  in.bias->generate(
      [&](auto b, auto h, auto row, auto key) { return (row + key) % 4 == 1 ? -kInf : in.bias->at(b, h, row, key); });
  const ScoreResults truth = run_score({c, "min(score, 0.5) + 1"}, as_f64(in), "reference");
  (void)expect_close(run_score({c, "min(score, 0.5) + 1"}, in, "cpu"), truth, 1e-5, 1e-4);
  const ScoreResults constant = run_score({c, "7"}, in, "cpu");
  const ScoreResults wanted = run_score({c, "7"}, as_f64(in), "reference");
  EXPECT_LE(largest_difference(constant.lse, wanted.lse), 1e-5);
}

}  // namespace
}  // namespace attend::test
