#include "support/nonfinite_checks.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <tuple>

#include "support/compare.hpp"
#include "support/expect.hpp"
#include "support/tolerances.hpp"

namespace attend::test {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

/// Returns a causal case with 1 batch entry and 2 query heads on 1 key head. Query row i sees the keys j <= i + 61.
AttentionCase base_case(DType dtype) {
  return {.dtype = dtype,
          .batch = 1,
          .heads_q = 2,
          .heads_k = 1,
          .seqlen_q = 70,
          .seqlen_k = 131,
          .head_dim = 24,
          .head_dim_v = 24,
          .causal = true,
          .seed = 51};
}
bool sees(std::int64_t i, std::int64_t j) {
  return j <= i + 61;
}

/// Expects NaN wherever touched(head, row, col) is true, and the numbers of `clean` everywhere else.
template <class Touched>
void expect_nan_exactly(const char* name, const TensorBuffer& got, const TensorBuffer& clean, DType dtype,
                        Touched touched) {
  const double allowed = property_tolerance(dtype) * largest_magnitude(clean.values());
  int wrong = 0;
  got.generate([&](auto b, auto h, auto row, auto col) {
    const double x = got.at(b, h, row, col), y = clean.at(b, h, row, col);
    const bool right = touched(h, row, col) ? std::isnan(x) : std::abs(x - y) <= allowed;
    if (!right && ++wrong <= 3) {
      ADD_FAILURE() << name << " (" << h << ", " << row << ", " << col << "): " << x << ", without the NaN " << y;
    }
    return x;
  });
  EXPECT_EQ(wrong, 0) << name;
}

void value_reaches_its_column_of_rows_that_see_it(const std::string& compute, DType dtype) {
  const Inputs in = make_inputs(base_case(dtype));
  const Outputs clean = run(in, compute);
  in.v.set(0, 0, 100, 5, kNaN);
  const Outputs out = run(in, compute);
  const auto seen = [](auto, auto row, auto) { return sees(row, 100); };
  expect_nan_exactly("o", out.o, clean.o, dtype, [](auto, auto row, auto col) { return sees(row, 100) && col == 5; });
  expect_nan_exactly("lse", out.lse, clean.lse, dtype, [](auto...) { return false; });
  expect_nan_exactly("dv", out.dv, clean.dv, dtype, [](auto...) { return false; });  // dv does not depend on v
  // Delta is NaN in the rows that see key 100. Therefore ds is NaN at every key of these rows. Each of these rows sees
  // only some of the keys.
  expect_nan_exactly("dq", out.dq, clean.dq, dtype, seen);
  expect_nan_exactly("dk", out.dk, clean.dk, dtype, [](auto...) { return true; });  // row 69 sees every key
}

void key_reaches_rows_that_see_it(const std::string& compute, DType dtype) {
  const Inputs in = make_inputs(base_case(dtype));
  const Outputs clean = run(in, compute);
  in.k.set(0, 0, 120, 3, kNaN);
  const Outputs out = run(in, compute);
  const auto seen = [](auto, auto row, auto) { return sees(row, 120); };
  expect_nan_exactly("o", out.o, clean.o, dtype, seen);
  expect_nan_exactly("lse", out.lse, clean.lse, dtype, seen);
  expect_nan_exactly("dq", out.dq, clean.dq, dtype, seen);
}

void query_reaches_its_row_and_the_gradients_of_its_keys(const std::string& compute, DType dtype) {
  const Inputs in = make_inputs(base_case(dtype));
  const Outputs clean = run(in, compute);
  in.q.set(0, 1, 10, 0, kNaN);
  const Outputs out = run(in, compute);
  const auto row10 = [](auto h, auto row, auto) { return h == 1 && row == 10; };
  const auto its_keys = [](auto, auto key, auto) { return sees(10, key); };
  expect_nan_exactly("o", out.o, clean.o, dtype, row10);
  expect_nan_exactly("lse", out.lse, clean.lse, dtype, row10);
  expect_nan_exactly("dq", out.dq, clean.dq, dtype, row10);
  expect_nan_exactly("dk", out.dk, clean.dk, dtype, its_keys);
  expect_nan_exactly("dv", out.dv, clean.dv, dtype, its_keys);
}

void output_gradient_reaches_visible_keys_only(const std::string& compute, DType dtype) {
  const Inputs in = make_inputs(base_case(dtype));
  const Outputs clean = run(in, compute);
  in.dout.set(0, 0, 20, 7, kNaN);
  const Outputs out = run(in, compute);
  expect_nan_exactly("o", out.o, clean.o, dtype, [](auto...) { return false; });
  expect_nan_exactly("dq", out.dq, clean.dq, dtype, [](auto h, auto row, auto) { return h == 0 && row == 20; });
  expect_nan_exactly("dk", out.dk, clean.dk, dtype, [](auto, auto key, auto) { return sees(20, key); });
  expect_nan_exactly("dv", out.dv, clean.dv, dtype, [](auto, auto key, auto col) { return sees(20, key) && col == 7; });
}

void what_is_masked_is_never_read(const std::string& compute, DType dtype) {
  AttentionCase c = base_case(dtype);
  c.causal = false;
  c.mask = Broadcast{false, false, false};
  const Inputs in = make_inputs(c);
  const auto masked = [&](std::int64_t key) { return in.mask->at(0, 0, 0, key) == 0; };
  const Outputs clean = run(in, compute);
  for (const double poison : {kNaN, kInf, -kInf}) {
    for (std::int64_t key = 0; key < c.seqlen_k; ++key) {
      if (!masked(key)) continue;
      for (std::int64_t col = 0; col < c.head_dim; ++col)
        in.k.set(0, 0, key, col, poison), in.v.set(0, 0, key, col, poison);
    }
    const Outputs out = run(in, compute);
    expect_near(out, clean, property_tolerance(dtype));
    for (std::int64_t key = 0; key < c.seqlen_k; ++key) {
      ASSERT_TRUE(!masked(key) || (out.dk.at(0, 0, key, 1) == 0 && out.dv.at(0, 0, key, 1) == 0)) << key;
    }
  }
}

void keys_beyond_the_diagonal_are_never_read(const std::string& compute, DType dtype) {
  AttentionCase c = base_case(dtype);
  c.seqlen_q = 131;
  const Inputs in = make_inputs(c);
  const Outputs clean = run(in, compute);
  for (std::int64_t col = 0; col < c.head_dim; ++col) in.k.set(0, 0, 130, col, kNaN), in.v.set(0, 0, 130, col, -kInf);
  const Outputs out = run(in, compute);
  expect_nan_exactly("o", out.o, clean.o, dtype, [](auto, auto row, auto) { return row == 130; });
  expect_nan_exactly("lse", out.lse, clean.lse, dtype, [](auto, auto row, auto) { return row == 130; });
  expect_nan_exactly("dq", out.dq, clean.dq, dtype, [](auto, auto row, auto) { return row == 130; });
}

void dropped_values_are_not_added(const std::string& compute, DType dtype) {
  AttentionCase c = base_case(dtype);
  c.causal = false;
  c.dropout_p = 0.5;
  const Inputs in = make_inputs(c);
  in.v.set(0, 0, 9, 2, kInf);
  const Outputs out = run(in, compute);
  const Outputs truth = run(as_f64(in), "reference");
  std::int64_t finite = 0;
  for (std::int64_t row = 0; row < c.seqlen_q; ++row) {
    EXPECT_EQ(std::isinf(out.o.at(0, 0, row, 2)), std::isinf(truth.o.at(0, 0, row, 2))) << row;
    finite += std::isfinite(out.o.at(0, 0, row, 2));
  }
  EXPECT_GT(finite, c.seqlen_q / 4);
  EXPECT_LT(finite, c.seqlen_q * 3 / 4);
}

// A score of +inf makes its row NaN (inf - inf). A score of -inf hides the key from the row.
void infinite_scores(const std::string& compute, DType dtype) {
  AttentionCase c = base_case(dtype);
  c.causal = false;
  c.bias = Broadcast{};
  const Inputs in = make_inputs(c);
  const Outputs clean = run(in, compute);
  in.bias->set(0, 0, 30, 64, kInf);
  const auto row30 = [](auto h, auto row, auto) { return h == 0 && row == 30; };
  const Outputs up = run(in, compute);
  expect_nan_exactly("o", up.o, clean.o, dtype, row30);
  expect_nan_exactly("lse", up.lse, clean.lse, dtype, row30);
  expect_nan_exactly("dq", up.dq, clean.dq, dtype, row30);
  in.bias->set(0, 0, 30, 64, -kInf);
  const Outputs down = run(in, compute);
  Inputs masked = in;
  masked.bias = copy_of(*in.bias);
  masked.bias->set(0, 0, 30, 64, 0);
  masked.mask = made(DType::kBool, in.bias->shape(),
                     [](auto, auto h, auto row, auto key) { return h == 0 && row == 30 && key == 64 ? 0.0 : 1.0; });
  expect_near(down, run(masked, compute), property_tolerance(dtype));
}

void row_of_minus_infinite_scores_is_an_empty_row(const std::string& compute, DType dtype) {
  AttentionCase c = base_case(dtype);
  c.causal = false;
  c.bias = Broadcast{};
  const Inputs in = make_inputs(c);
  const Outputs clean = run(in, compute);
  for (std::int64_t key = 0; key < c.seqlen_k; ++key) in.bias->set(0, 1, 5, key, -kInf);
  const Outputs out = run(in, compute);
  EXPECT_EQ(out.lse.at(0, 1, 5, 0), -kInf);
  for (std::int64_t col = 0; col < c.head_dim; ++col) {
    EXPECT_EQ(out.o.at(0, 1, 5, col), 0);
    EXPECT_EQ(out.dq.at(0, 1, 5, col), 0);
  }
  expect_near("other head",
              made(dtype, {1, 1, 70, 24}, [&](auto, auto, auto r, auto k) { return out.o.at(0, 0, r, k); }).values(),
              made(dtype, {1, 1, 70, 24}, [&](auto, auto, auto r, auto k) { return clean.o.at(0, 0, r, k); }).values(),
              property_tolerance(dtype));
  for (const TensorBuffer* t : {&out.o, &out.dq, &out.dk, &out.dv, &*out.dbias}) {
    for (const double x : t->values()) ASSERT_TRUE(std::isfinite(x));
  }
}

void sink_reaches_its_head(const std::string& compute, DType dtype) {
  AttentionCase c = base_case(dtype);
  c.sinks = true;
  c.dlse = true;
  const Inputs in = make_inputs(c);
  for (const std::int64_t head : {0, 1}) in.sinks->set(0, head, 0, 0, 0.5);
  const Outputs clean = run(in, compute);
  in.sinks->set(0, 1, 0, 0, kNaN);
  const Outputs out = run(in, compute);
  const auto of_its_head = [](auto head, auto, auto) { return head == 1; };
  for (const auto& [name, got, want] : {std::tuple{"o", &out.o, &clean.o},
                                        {"lse", &out.lse, &clean.lse},
                                        {"dq", &out.dq, &clean.dq},
                                        {"dsinks", &*out.dsinks, &*clean.dsinks}}) {
    expect_nan_exactly(name, *got, *want, dtype, of_its_head);
  }
  expect_nan_exactly("dk", out.dk, clean.dk, dtype, [](auto...) { return true; });  // dk sums over both heads
}

// A sink of -inf has no effect. A sink of +inf gets probability 1, so all keys of its rows get probability 0.
void infinite_sinks(const std::string& compute, DType dtype) {
  AttentionCase c = base_case(dtype);
  c.dlse = true;
  const Outputs none = run(make_inputs(c), compute);
  c.sinks = true;
  const Inputs in = make_inputs(c);
  in.sinks->fill(-kInf);
  const Outputs out = run(in, compute);
  for (const double x : out.dsinks->values()) EXPECT_EQ(x, 0);
  for (const auto& [name, got, want] : {std::tuple{"o", &out.o, &none.o},
                                        {"lse", &out.lse, &none.lse},
                                        {"dq", &out.dq, &none.dq},
                                        {"dk", &out.dk, &none.dk},
                                        {"dv", &out.dv, &none.dv}}) {
    expect_near(name, got->values(), want->values(), property_tolerance(got->dtype()));
  }
  in.sinks->fill(kInf);
  const Outputs all = run(in, compute);
  for (const double x : all.lse.values()) ASSERT_EQ(x, kInf);
  for (const TensorBuffer* t : {&all.o, &all.dq, &all.dk, &all.dv}) {
    for (const double x : t->values()) ASSERT_EQ(x, 0);
  }
}

// Checks for every tensor and option that NaN and infinities are at the same positions as in the float64 reference.
void classes_agree_with_the_reference(const std::string& compute, DType dtype) {
  struct Plant {
    const char* tensor;
    double value;
  };
  for (const Plant& plant : {Plant{"q", kNaN},
                             {"k", kNaN},
                             {"v", kNaN},
                             {"dout", kNaN},
                             {"v", kInf},
                             {"dout", -kInf},
                             {"bias", kNaN},
                             {"sinks", kNaN},
                             {"sinks", kInf}}) {
    for (int variant = 0; variant < 4; ++variant) {
      AttentionCase c = base_case(dtype);
      c.bias = Broadcast{false, true, variant % 2 == 0};
      if (variant == 1) c.window_left = 20;
      if (variant == 2) c.mask = Broadcast{};
      if (variant == 3) c.dropout_p = 0.3, c.causal = false;
      const std::string name = plant.tensor;
      c.sinks = variant % 2 == 1 || name == "sinks";
      SCOPED_TRACE(std::string(plant.tensor) + " " + std::to_string(plant.value));
      const Inputs in = make_inputs(c);
      const TensorBuffer& t = name == "q"       ? in.q
                              : name == "k"     ? in.k
                              : name == "v"     ? in.v
                              : name == "dout"  ? in.dout
                              : name == "sinks" ? *in.sinks
                                                : *in.bias;
      t.set(0, 0, t.shape()[2] / 2, t.shape()[3] / 2, plant.value);
      check_against_reference(in, compute);
    }
  }
}

}  // namespace

const std::vector<NonFiniteCheck>& nonfinite_checks() {
  static const std::vector<NonFiniteCheck> kChecks = {
      {"ValueReachesItsColumnOfRowsThatSeeIt", value_reaches_its_column_of_rows_that_see_it, false},
      {"KeyReachesRowsThatSeeIt", key_reaches_rows_that_see_it, false},
      {"QueryReachesItsRowAndTheGradientsOfItsKeys", query_reaches_its_row_and_the_gradients_of_its_keys, false},
      {"OutputGradientReachesVisibleKeysOnly", output_gradient_reaches_visible_keys_only, false},
      {"WhatIsMaskedIsNeverRead", what_is_masked_is_never_read, false},
      {"KeysBeyondTheDiagonalAreNeverRead", keys_beyond_the_diagonal_are_never_read, false},
      {"DroppedValuesAreNotAdded", dropped_values_are_not_added, false},
      {"InfiniteScores", infinite_scores, false},
      {"RowOfMinusInfiniteScoresIsAnEmptyRow", row_of_minus_infinite_scores_is_an_empty_row, false},
      {"SinkReachesItsHead", sink_reaches_its_head, false},
      {"InfiniteSinks", infinite_sinks, false},
      {"ClassesAgreeWithTheReference", classes_agree_with_the_reference, true}};
  return kChecks;
}

}  // namespace attend::test
