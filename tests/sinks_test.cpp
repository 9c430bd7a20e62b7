// Tests sinks on the CPU. Results are computed by hand, or a sink is compared with a key without a value. Covers the
// limits of a sink's range, problems without keys, rows or heads, tensors of every layout and type, rows with a large
// lse, lse in float64, and any number of threads.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string_view>
#include <vector>

#include "cpu/backends.hpp"
#include "support/compare.hpp"
#include "support/expect.hpp"
#include "support/large_scores.hpp"
#include "support/tolerances.hpp"

namespace attend::test {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

/// Returns a case in which row 0 of each head sees no key, because there is one more row than keys.
AttentionCase base_case(DType dtype = DType::kF32) {
  return {.dtype = dtype,
          .batch = 2,
          .heads_q = 4,
          .heads_k = 2,
          .seqlen_q = 41,
          .seqlen_k = 40,
          .head_dim = 24,
          .head_dim_v = 16,
          .causal = true,
          .sinks = true,
          .dlse = true,
          .seed = 91};
}

AttentionCase with_everything(AttentionCase c) {
  c.softcap = 3;
  c.alibi = true;
  c.bias = Broadcast{false, true, true};
  c.mask = Broadcast{true, false, true};
  c.dropout_p = 0.25;
  c.sinks_per_sequence = true;
  return c;
}

/// Returns the sum of dlse over the rows of a head, in one sequence, or in all sequences if `sequence` is -1.
double sum_of_dlse(const Inputs& in, std::int64_t sequence, std::int64_t head) {
  double sum = 0;
  for (std::int64_t b = 0; b < in.options.batch; ++b) {
    if (sequence >= 0 && b != sequence) continue;
    for (std::int64_t row = 0; row < in.options.seqlen_q; ++row) sum += in.dlse->at(b, head, row, 0);
  }
  return sum;
}

void expect_all(const char* name, const TensorBuffer& t, double value) {
  for (const double x : t.values()) ASSERT_EQ(x, value) << name;
}

class Sinks : public testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Cpu, Sinks, testing::Values("cpu", "reference"),
                         [](const auto& test) { return std::string(test.param); });

// With one key of score s = 0 and a sink t, p of the key is 1 / (1 + exp(t)).
TEST_P(Sinks, AreANumberByHand) {
  for (const double others : {1.0, 3.0}) {  // the value of exp(t)
    const double t = std::log(others), p = 1 / (1 + others), dlse = 1, dp = 7;
    Inputs in = make_inputs({.head_dim = 2, .head_dim_v = 2, .scale = 1, .sinks = true, .dlse = true});
    in.q.fill(0);
    in.k.generate([](auto, auto, auto, auto col) { return col == 0 ? 1.0 : 2.0; });
    in.v.generate([](auto, auto, auto, auto col) { return col == 0 ? 3.0 : 4.0; });
    in.dout.fill(1);
    in.dlse->fill(dlse);
    in.sinks->fill(t);
    const Outputs out = run(in, GetParam());
    EXPECT_NEAR(out.o.at(0, 0, 0, 0), 3 * p, 1e-6);
    EXPECT_NEAR(out.o.at(0, 0, 0, 1), 4 * p, 1e-6);
    EXPECT_NEAR(out.lse.at(0, 0, 0, 0), std::log(1 + others), 1e-6);
    const double ds = p * (dp - dp * p + dlse);
    EXPECT_NEAR(out.dq.at(0, 0, 0, 0), ds, 1e-6);
    EXPECT_NEAR(out.dq.at(0, 0, 0, 1), 2 * ds, 1e-6);
    EXPECT_NEAR(out.dv.at(0, 0, 0, 0), p, 1e-6);
    EXPECT_NEAR(out.dsinks->at(0, 0, 0, 0), (1 - p) * (dlse - dp * p), 1e-6);
  }
}

// For every row, a sink must act like one more key with score t and without a value.
TEST(SinksAreKeys, WithoutAValue) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    AttentionCase c = base_case(dtype);
    c.causal = false;
    const Inputs in = make_inputs(c);
    AttentionCase of_longer = c;
    of_longer.seqlen_k = c.seqlen_k + 1;
    of_longer.sinks = false;
    of_longer.bias = Broadcast{false, true, false};
    Inputs longer = make_inputs(of_longer);
    longer.q = in.q, longer.dout = in.dout, longer.dlse = in.dlse;
    const auto extended = [&](const TensorBuffer& to, const TensorBuffer& from) {
      to.generate(
          [&](auto b, auto h, auto row, auto col) { return row == c.seqlen_k ? 0.0 : from.at(b, h, row, col); });
    };
    extended(longer.k, in.k);
    extended(longer.v, in.v);
    longer.bias->generate(
        [&](auto, auto h, auto, auto key) { return key == c.seqlen_k ? in.sinks->at(0, h, 0, 0) : 0.0; });
    const Outputs out = run(in, "cpu"), want = run(longer, "cpu");
    const double tolerance = property_tolerance(dtype);
    expect_near("o", out.o.values(), want.o.values(), tolerance);
    expect_near("lse", out.lse.values(), want.lse.values(), property_tolerance(DType::kF32));
    expect_near("dq", out.dq.values(), want.dq.values(), tolerance);
    const auto without_last = [&](const TensorBuffer& t, const TensorBuffer& like) {
      return made(t.dtype(), like.shape(), [&](auto... at) { return t.at(at...); }).values();
    };
    expect_near("dk", out.dk.values(), without_last(want.dk, out.dk), tolerance);
    expect_near("dv", out.dv.values(), without_last(want.dv, out.dv), tolerance);
    std::vector<double> last_of_dbias;
    for (std::int64_t h = 0; h < c.heads_q; ++h) last_of_dbias.push_back(want.dbias->at(0, h, 0, c.seqlen_k));
    expect_near("dsinks", out.dsinks->values(), last_of_dbias, tolerance);
  }
}

TEST_P(Sinks, OfMinusInfinityAreNone) {
  AttentionCase packed = base_case();
  packed.varlen_q = {13, 0, 5}, packed.varlen_k = {9, 4, 0};
  for (AttentionCase c : {base_case(), with_everything(base_case()), packed, base_case(DType::kBF16)}) {
    SCOPED_TRACE(describe(c));
    const Inputs in = make_inputs(c);
    in.sinks->fill(-kInf);
    Inputs without = in;
    without.sinks.reset();
    const Outputs out = run(in, GetParam());
    expect_same_bits(out, run(without, GetParam()));
    expect_all("dsinks", *out.dsinks, 0);
  }
}

TEST_P(Sinks, ThatAreVeryLargeLeaveNothingToKeys) {
  constexpr double kLarge = 1e4;  // float16 can represent this number
  for (const DType dtype : {DType::kF32, DType::kF16}) {
    for (AttentionCase c : {base_case(dtype), with_everything(base_case(dtype))}) {
      SCOPED_TRACE(describe(c));
      const Inputs in = make_inputs(c);
      in.sinks->fill(kLarge);
      const Outputs out = run(in, GetParam());
      for (const TensorBuffer* t : {&out.o, &out.dq, &out.dk, &out.dv}) expect_all("o or a gradient", *t, 0);
      expect_all("lse", out.lse, kLarge);
      for (std::int64_t b = 0; b < out.dsinks->shape()[0]; ++b) {
        for (std::int64_t h = 0; h < c.heads_q; ++h) {
          const double want = sum_of_dlse(in, c.sinks_per_sequence ? b : -1, h);
          EXPECT_NEAR(out.dsinks->at(b, h, 0, 0), want, 20 * unit_roundoff(dtype)) << b << " " << h;
        }
      }
    }
  }
}

// In a row that sees no key, the sink has probability 1. Then lse equals the sink, and o and dq are 0.
TEST_P(Sinks, AreTheLseOfRowsThatSeeNoKey) {
  const Inputs in = make_inputs(base_case());
  const std::int64_t row = 0;
  in.sinks->set(0, 1, 0, 0, -kInf);
  in.sinks->set(0, 2, 0, 0, -2.5);
  const Outputs out = run(in, GetParam());
  for (const std::int64_t b : {0, 1}) {
    for (std::int64_t h = 0; h < 4; ++h) {
      EXPECT_EQ(out.lse.at(b, h, row, 0), in.sinks->at(0, h, 0, 0)) << h;
      for (std::int64_t col = 0; col < 16; ++col) EXPECT_EQ(out.o.at(b, h, row, col), 0);
      for (std::int64_t col = 0; col < 24; ++col) EXPECT_EQ(out.dq.at(b, h, row, col), 0);
    }
  }
}

TEST_P(Sinks, WithoutKeysAreAllThereIs) {
  for (const bool per_sequence : {false, true}) {
    AttentionCase c = base_case();
    c.seqlen_k = 0;
    c.sinks_per_sequence = per_sequence;
    const Inputs in = make_inputs(c);
    in.sinks->generate([](auto b, auto h, auto, auto) { return double(h) - 2 * double(b); });
    const Outputs out = run(in, GetParam());
    expect_all("o", out.o, 0);
    expect_all("dq", out.dq, 0);
    for (std::int64_t b = 0; b < c.batch; ++b) {
      for (std::int64_t h = 0; h < c.heads_q; ++h) {
        const std::int64_t entry = per_sequence ? b : 0;
        EXPECT_EQ(out.lse.at(b, h, 17, 0), in.sinks->at(entry, h, 0, 0));
        EXPECT_NEAR(out.dsinks->at(entry, h, 0, 0), sum_of_dlse(in, per_sequence ? b : -1, h), 1e-5);
      }
    }
  }
}

TEST_P(Sinks, WithoutRowsHaveNoGradient) {
  AttentionCase no_rows = base_case(), no_batch = base_case(), no_sequences = base_case();
  no_rows.seqlen_q = 0;
  no_batch.batch = 0;
  no_sequences.varlen_q = no_sequences.varlen_k = {0, 0};
  for (const AttentionCase& c : {no_rows, no_batch, no_sequences}) {
    SCOPED_TRACE(describe(c));
    const Outputs out = run(make_inputs(c), GetParam());
    ASSERT_EQ(out.dsinks->values().size(), 4U);
    expect_all("dsinks", *out.dsinks, 0);
  }
  AttentionCase no_heads = base_case();
  no_heads.heads_q = 0;
  EXPECT_TRUE(run(make_inputs(no_heads), GetParam()).dsinks->values().empty());
  no_batch.sinks_per_sequence = true;
  EXPECT_TRUE(run(make_inputs(no_batch), GetParam()).dsinks->values().empty());
}

/// Returns a copy with padding between the elements, so that the sinks of neighbouring heads are not adjacent.
TensorBuffer apart(const TensorBuffer& t) {
  const TensorBuffer to(t.dtype(), t.shape(), {Layout::kPadded, 3});
  to.generate([&](auto... at) { return t.at(at...); });
  return to;
}

TEST_P(Sinks, MayLieAnywhere) {
  AttentionCase c = base_case();
  c.sinks_per_sequence = true;
  const Inputs in = make_inputs(c);
  const Outputs want = run(in, GetParam());
  Inputs moved = in;
  moved.sinks = apart(*in.sinks);
  Outputs out = make_outputs(moved);
  out.dsinks = TensorBuffer(c.dtype, in.sinks->shape(), {Layout::kPadded, 5});
  run_forward(moved, out, GetParam());
  run_backward(moved, out, GetParam());
  expect_same_bits(out, want);
  EXPECT_TRUE(out.dsinks->gaps_intact());
}

// With strides of 0, all sequences and heads share one sink. The gradient still has a separate entry for each sequence
// and head.
TEST_P(Sinks, MayBeBroadcastByStrides) {
  AttentionCase c = base_case();
  c.sinks_per_sequence = true;
  const Inputs in = make_inputs(c);
  in.sinks->fill(0.75);
  Inputs broadcast = in;
  broadcast.sinks = made(c.dtype, {1, 1, 1, 1}, [](auto...) { return 0.75; }).expanded(in.sinks->shape());
  expect_same_bits(run(broadcast, GetParam()), run(in, GetParam()));
}

// If all sequences share a sink, its gradient is the sum of the gradients of separate sinks.
TEST_P(Sinks, OfAllSequencesSumTheirGradients) {
  AttentionCase packed = base_case();
  packed.varlen_q = {13, 0, 5, 30}, packed.varlen_k = {9, 4, 0, 70};
  for (const AttentionCase& c : {base_case(), packed}) {
    const Inputs in = make_inputs(c);
    Inputs each = in;
    each.options.sinks_per_sequence = true;
    each.sinks =
        made(c.dtype, {c.num_sequences(), 4, 1, 1}, [&](auto, auto h, auto, auto) { return in.sinks->at(0, h, 0, 0); });
    const Outputs out = run(in, GetParam()), of_each = run(each, GetParam());
    std::vector<double> sums(4);
    for (std::int64_t s = 0; s < c.num_sequences(); ++s) {
      for (std::int64_t h = 0; h < 4; ++h) sums[static_cast<std::size_t>(h)] += of_each.dsinks->at(s, h, 0, 0);
    }
    expect_near("dsinks", out.dsinks->values(), sums, property_tolerance(DType::kF32));
    expect_same_bits("o", out.o, of_each.o);
    expect_same_bits("dk", out.dk, of_each.dk);
  }
}

// Sinks and their gradient may have different float types. The same numbers must give the same bits in every type.
TEST_P(Sinks, MayBeOfAnyFloatType) {
  const auto converted = [](const TensorBuffer& t, DType dtype) {
    return made(dtype, t.shape(), [&](auto... at) { return t.at(at...); });
  };
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF64}) {
    // The cpu backend does not support float64.
    if (dtype == DType::kF64 && std::string_view(GetParam()) == "cpu") continue;
    SCOPED_TRACE(dtype_name(dtype));
    Inputs in = make_inputs(base_case());
    in.sinks = converted(*in.sinks, DType::kBF16);
    in.sinks = converted(*in.sinks, DType::kF32);  // bfloat16 numbers, which all other float types can represent
    const Outputs want = run(in, GetParam());
    in.sinks = converted(*in.sinks, dtype);
    Outputs out = make_outputs(in);
    out.dsinks = TensorBuffer(dtype, in.sinks->shape());
    run_forward(in, out, GetParam());
    run_backward(in, out, GetParam());
    expect_near("dsinks", out.dsinks->values(), want.dsinks->values(), 2 * unit_roundoff(DType::kBF16));
    out.dsinks = want.dsinks;
    expect_same_bits(out, want);
    in.options.dsinks = false;
    const Outputs alone = run(in, GetParam());
    expect_same_bits("dq", alone.dq, want.dq);
    expect_same_bits("dv", alone.dv, want.dv);
  }
}

// Near -1e9, a float32 lse is a multiple of 64. Rounding loses the sink and the logarithm of the number of keys.
TEST_P(Sinks, BesideAVeryLargeLseHaveTheirShare) {
  constexpr double kLarge = -1e9, keys = 6;
  Inputs in = make_inputs({.seqlen_k = 6, .head_dim = 2, .head_dim_v = 2, .bias = Broadcast{}, .sinks = true});
  in.q.fill(0);
  in.v.fill(3);
  in.dout.fill(0.5);
  in.bias->fill(kLarge);
  in.sinks->fill(kLarge);
  const Outputs out = run(in, GetParam());
  const double o = 3 * keys / (keys + 1), delta = 2 * 0.5 * o;
  EXPECT_NEAR(out.o.at(0, 0, 0, 0), o, 1e-5);
  EXPECT_NEAR(out.dsinks->at(0, 0, 0, 0), -delta / (keys + 1), 1e-5);
}

TEST_P(Sinks, TakeNothingOfDoutFromRowsThatSeeNoKey) {
  const Inputs in = make_inputs(base_case());
  const Outputs want = run(in, GetParam());
  for (const double x : {std::numeric_limits<double>::quiet_NaN(), kInf}) {
    for (std::int64_t h = 0; h < 4; ++h) in.dout.set(1, h, 0, 3, x);
    const Outputs out = run(in, GetParam());
    expect_same_bits("dsinks", *out.dsinks, *want.dsinks);
  }
  for (std::int64_t h = 0; h < 4; ++h) in.dout.set(1, h, 1, 3, kInf);  // this row sees only one key
  const Outputs out = run(in, GetParam());
  for (std::int64_t h = 0; h < 4; ++h) {
    const double sink = in.sinks->at(0, h, 0, 0);
    EXPECT_EQ(std::isfinite(out.dsinks->at(0, h, 0, 0)), !std::isfinite(sink)) << "head " << h << ", sink " << sink;
  }
}

// For scores of 1e4 to 1e6, rounding lse in its last bit causes an error in p. The probability of the sink has the same
// relative error.
TEST(SinksBesideLargeScores, StayInBudget) {
  for (const double size : {-1e6, 1e4, 1e6}) {
    AttentionCase c = {};
    c.sinks = c.dlse = true;
    const Inputs in = with_common_bias(DType::kF32, size, c);
    for (const std::int64_t head : {0, 1}) in.sinks->set(0, head, 0, 0, head == 0 ? size + 6 : 3.0);
    for (const char* compute : {"cpu", "reference"}) check_against_reference(in, compute);
  }
}

/// Returns lse in float64 from the `cpu` backend. A ring stores lse like this, because it merges partial results.
TensorBuffer lse_in_f64(const Inputs& in) {
  const Outputs out = make_outputs(in);
  core::Problem p =
      core::make_forward_problem(in.q.view(), in.k.view(), in.v.view(), out.o.view(), nullptr, in.params("cpu"));
  const TensorBuffer lse(DType::kF64, out.lse.shape());
  p.lse = lse.view();
  cpu::fast_backend().forward(p, nullptr);
  return lse;
}

TEST(SinksInFloat64, AreInLse) {
  for (const AttentionCase& c : {base_case(), with_everything(base_case())}) {
    SCOPED_TRACE(describe(c));
    const Inputs in = make_inputs(c);
    in.sinks->set(0, 1, 0, 0, -kInf);
    const Outputs truth = run(as_f64(in), "reference");
    expect_near("lse", lse_in_f64(in).values(), truth.lse.values(), property_tolerance(DType::kF32));
  }
  constexpr double kLarge = 0x1p24;  // neighbouring float32 numbers differ by 2
  const Inputs in = make_inputs({.head_dim = 2, .head_dim_v = 2, .bias = Broadcast{}, .sinks = true});
  in.q.fill(0);
  in.bias->fill(kLarge);
  in.sinks->fill(kLarge);
  EXPECT_NEAR(lse_in_f64(in).at(0, 0, 0, 0), kLarge + std::log(2.0), 1e-6);
}

// With any number of threads, the same numbers must be added in the same order.
TEST(SinksOnThreads, GiveTheSameBits) {
  AttentionCase c = with_everything(base_case());
  c.seqlen_q = 1000, c.seqlen_k = 90;
  c.head_dim_v = 64;
  for (const bool per_sequence : {false, true}) {
    c.sinks_per_sequence = per_sequence;
    const Inputs in = make_inputs(c);
    set_cpu_threads(1);
    const Outputs one = run(in, "cpu");
    set_cpu_threads(2);
    const Outputs two = run(in, "cpu");
    set_cpu_threads(0);
    expect_same_bits(two, one);
  }
}

}  // namespace
}  // namespace attend::test
