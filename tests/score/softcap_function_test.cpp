// Tests that a score function that equals the option softcap is computed like the option, and that no other function
// is.
#include <gtest/gtest.h>

#include <cmath>

#include "attend/score_function.hpp"
#include "core/score_function_state.hpp"
#include "score/score_case.hpp"
#include "support/attention_case.hpp"

namespace attend::test {
namespace {

double softcap_of(const char* text) {
  return ScoreFunction(text).state()->custom.softcap;
}

TEST(SoftcapFunction, IsKnownByItsText) {
  for (const char* text : {"50 * tanh(score / 50)", "tanh(score / 50) * 50", "let x = score / 50.0; 50 * tanh(x)",
                           "50 * tanh(score * 0.02)", "50 * tanh((1 / 50) * score)"}) {
    EXPECT_EQ(softcap_of(text), 50) << text;
  }
  EXPECT_EQ(softcap_of("0.125 * tanh(score / 0.125)"), 0.125);
  for (const char* text :
       {"50 * tanh(score / 30)", "-50 * tanh(score / -50)", "50 * tanh(score / 50) + 1", "50 * tanh((score + 1) / 50)",
        "50 * tanh(q / 50)", "tanh(score)* score", "50 * sigmoid(score / 50)", "1000 * tanh(score / 1000)",
        "50 + tanh(score / 50)", "50 * tanh(50 / score)", "50 * tanh(score * 50)", "score", "50 * (score / 50)"}) {
    EXPECT_EQ(softcap_of(text), 0) << text;
  }
}

class SoftcapCalls : public testing::Test {
 protected:
  /// Returns the results with the score function `score`, or with the option if `softcap` is not 0.
  [[nodiscard]] static Outputs run(const Inputs& in, const ScoreFunction* score, double softcap) {
    const Outputs out = make_outputs(in);
    ForwardCall call = forward_of(in, out, "cpu");
    call.params.score = score, call.params.softcap = softcap;
    forward(call);
    BackwardCall back = backward_of(in, out, "cpu");
    back.params.score = score, back.params.softcap = softcap;
    backward(back);
    return out;
  }
  static void expect_equal(const Outputs& a, const Outputs& b, bool are_equal) {
    EXPECT_EQ(a.o.values() == b.o.values(), are_equal);
    EXPECT_EQ(a.dq.values() == b.dq.values(), are_equal);
    EXPECT_EQ(a.dk.values() == b.dk.values(), are_equal);
  }

  AttentionCase options = {.dtype = DType::kF32,
                           .batch = 2,
                           .heads_q = 4,
                           .heads_k = 2,
                           .seqlen_q = 70,
                           .seqlen_k = 131,
                           .head_dim = 40,
                           .head_dim_v = 24,
                           .causal = true,
                           .seed = 5};
  ScoreFunction function{"0.5 * tanh(score / 0.5)"};
};

TEST_F(SoftcapCalls, HaveTheBitsOfTheOption) {
  const Inputs in = make_inputs(options);
  expect_equal(run(in, &function, 0), run(in, nullptr, 0.5), true);
  expect_equal(run(in, &function, 0), run(in, nullptr, 0), false);
}

/// If another option changes scores, the function is evaluated after the soft cap and before the bias. In this case the
/// function must not be replaced by the option.
TEST_F(SoftcapCalls, BesideABiasAreTheFunction) {
  options.bias = Broadcast{};
  const Inputs in = make_inputs(options);
  expect_equal(run(in, &function, 0), run(in, nullptr, 0.5), false);
  const ScoreCase score = {options, "0.5 * tanh(score / 0.5)"};
  const ScoreResults got = run_score(score, in, "cpu"), truth = run_score(score, as_f64(in), "reference");
  (void)expect_close(got, truth, 1e-5, 2e-5);
}

/// The call has the option softcap and a function that applies a second soft cap.
TEST_F(SoftcapCalls, BesideASoftcapAreTheFunction) {
  const Inputs in = make_inputs(options);
  expect_equal(run(in, &function, 0.5), run(in, nullptr, 0.5), false);
}

}  // namespace
}  // namespace attend::test
