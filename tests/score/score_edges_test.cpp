// Tests edge cases of score functions: moved function objects, gradients that share memory, strides of dimensions of
// size 1, and scores so large that the logarithm of the row sum is lost next to them.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "score/score_case.hpp"

namespace attend::test {
namespace {

TEST(ScoreFunctionEdges, AMovedOneIsWhatItWas) {
  ScoreFunction from("score + 1");
  ScoreFunction to = std::move(from);
  EXPECT_EQ(from.text(), "score + 1");  // NOLINT(bugprone-use-after-move,clang-analyzer-cplusplus.Move)
  EXPECT_EQ(from.with({}).text(), "score + 1");
  from = std::move(to);
  EXPECT_EQ(to.text(), "score + 1");  // NOLINT(bugprone-use-after-move,clang-analyzer-cplusplus.Move)
}

AttentionCase small_case() {
  return {.batch = 1, .heads_q = 2, .heads_k = 2, .seqlen_q = 5, .seqlen_k = 6, .head_dim = 4, .head_dim_v = 4};
}

/// A backward call that computes the gradients of the captures `a` and `c`, each of shape (4, 4).
class GradientCall {
 public:
  std::vector<float> memory = std::vector<float>(200, 7.0F);

  /// Returns the error message of backward, or "" if the call succeeds. A refused call must not write anything.
  std::string refusal(std::vector<CaptureGradient> gradients) {
    const ScoreFunction function("score + a[q][k] + c[q][k]", {capture("a"), capture("c")});
    const Params params = {.score = &function};
    forward({.q = in_.q.view(),
             .k = in_.k.view(),
             .v = in_.v.view(),
             .o = out_.o.view(),
             .lse = out_.lse.view(),
             .params = params});
    try {
      backward({.q = in_.q.view(),
                .k = in_.k.view(),
                .v = in_.v.view(),
                .o = out_.o.view(),
                .lse = out_.lse.view(),
                .dout = in_.dout.view(),
                .dq = out_.dq.view(),
                .dk = out_.dk.view(),
                .dv = out_.dv.view(),
                .captures = std::move(gradients),
                .params = params});
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      EXPECT_EQ(memory, std::vector<float>(200, 7.0F));
      return error.what();
    }
    return "";
  }

  CaptureGradient gradient(const char* name, std::int64_t first, std::vector<std::int64_t> stride) {
    return {name, {.data = memory.data() + first, .shape = {4, 4}, .stride = std::move(stride)}};
  }

 private:
  [[nodiscard]] ScoreCapture capture(const char* name) const {
    return {name, {.data = numbers_.data(), .shape = {4, 4}}};
  }

  std::vector<float> numbers_ = std::vector<float>(16, 0.5F);
  Inputs in_ = make_inputs(small_case());
  Outputs out_ = make_outputs(in_);
};

TEST(ScoreFunctionEdges, GradientsThatShareMemoryAreRefused) {
  GradientCall call;
  const std::string by_strides =
      "captures: 'a': strides with which elements share memory, allowed strides without overlap";
  EXPECT_EQ(call.refusal({call.gradient("a", 0, {1, 1})}), by_strides);
  EXPECT_EQ(call.refusal({call.gradient("a", 0, {2, 1})}), by_strides);
  EXPECT_EQ(call.refusal({call.gradient("a", 0, {1, 3})}), by_strides);
  EXPECT_EQ(call.refusal({call.gradient("a", 0, {4, 1}), call.gradient("c", 2, {4, 1})}),
            "captures: 'c': shares memory with captures: 'a', allowed a separate buffer");
  EXPECT_EQ(call.refusal({call.gradient("a", 0, {4, 1}), call.gradient("c", 15, {4, 1})}),
            "captures: 'c': shares memory with captures: 'a', allowed a separate buffer");
  EXPECT_EQ(call.refusal({call.gradient("an\nother", 0, {4, 1})}),
            "captures: 'an?other', allowed the captures of params.score: a, c");
  for (const std::vector<std::int64_t>& stride : {std::vector<std::int64_t>{4, 1}, {1, 4}, {9, 2}}) {
    EXPECT_EQ(call.refusal({call.gradient("a", 0, stride), call.gradient("c", 100, stride)}), "");
    call.memory.assign(200, 7.0F);
  }
  EXPECT_EQ(call.refusal({call.gradient("a", 0, {8, 1}), call.gradient("c", 4, {8, 1})}), "") << "beside each other";
}

/// If a dimension has size 1, its stride must not be used, however large it is.
TEST(ScoreFunctionEdges, TheStrideOfASingleElementIsNotRead) {
  const std::vector<float> numbers = {1, 2, 3};
  for (const std::int64_t stride : {std::numeric_limits<std::int64_t>::min(), std::int64_t{-1}, std::int64_t{0},
                                    std::numeric_limits<std::int64_t>::max()}) {
    const AttentionCase c = small_case();
    const Inputs in = make_inputs(c);
    const Outputs out = make_outputs(in), wanted = make_outputs(in);
    const ScoreFunction function("score + t[5][k]",
                                 {{"t", {.data = numbers.data(), .shape = {1, 3}, .stride = {stride, 1}}}});
    const ScoreFunction plain("score + t[k]", {{"t", {.data = numbers.data(), .shape = {3}}}});
    for (const auto& [f, o] : {std::pair{&function, &out}, {&plain, &wanted}}) {
      forward({.q = in.q.view(), .k = in.k.view(), .v = in.v.view(), .o = o->o.view(), .params = {.score = f}});
    }
    EXPECT_EQ(out.o.values(), wanted.o.values()) << stride;
  }
}

/// float32 cannot represent -1e38. The rounding error of the score is far larger than the logarithm of the number of
/// keys.
TEST(ScoreFunctionEdges, RowsOfOneHugeScoreHaveGradients) {
  AttentionCase c = small_case();
  c.seqlen_q = 40, c.seqlen_k = 70, c.seed = 8;
  const Inputs in = make_inputs(c);
  for (const char* text : {"q % 2 == 0 ? -1e38 : score", "q % 2 == 0 ? 1e38 : score", "q % 2 == 0 ? -1e30 : score"}) {
    SCOPED_TRACE(text);
    const ScoreResults reference = run_score({c, text}, in, "reference");
    (void)expect_close(run_score({c, text}, in, "cpu"), reference, 1e-5, 1e-4);
    double sum = 0;  // each row of p sums to 1, so the sum of dv over keys equals the sum of dout over rows
    for (const double x : reference.dv) sum += x;
    double of_dout = 0;
    for (const double x : in.dout.values()) of_dout += x;
    EXPECT_NEAR(sum, of_dout, 1e-3);
  }
}

/// The score is a difference of large integers that depend on row and key. float32 can represent none of the integers.
TEST(ScoreFunctionEdges, LargeIntegersAreExact) {
  const AttentionCase c = {.batch = 1,
                           .heads_q = 2,
                           .heads_k = 2,
                           .seqlen_q = 70,
                           .seqlen_k = 70,
                           .head_dim = 8,
                           .head_dim_v = 8,
                           .seed = 3};
  std::vector<double> times;
  for (int n = 0; n < 70; ++n) times.push_back(1e9 + 100 * n);
  for (const DType dtype : {DType::kI32, DType::kI64}) {
    for (const char* text : {"score - (t[q] - t[k]) * 0.001", "score - (t[q] - 1000000000) * 0.001"}) {
      const ScoreCase score = {c, text, {CaptureBuffer("t", dtype, {70}, times)}};
      const Inputs in = make_inputs(c);
      (void)expect_close(run_score(score, in, "cpu"), run_score(score, as_f64(in), "reference"), 1e-5, 2e-5);
    }
  }
}

}  // namespace
}  // namespace attend::test
