// Tests that a result does not depend on other heads, packing, layout, later keys, or the number of repetitions.
#include <gtest/gtest.h>

#include <cstdio>

#include "support/expect.hpp"
#include "support/tolerances.hpp"

namespace attend::test {
namespace {

class Independence : public testing::TestWithParam<DType> {
 protected:
  [[nodiscard]] static double tolerance() { return property_tolerance(GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(Cpu, Independence, testing::Values(DType::kF32, DType::kF16, DType::kBF16),
                         [](const auto& test) { return std::string(dtype_name(test.param)); });

AttentionCase base_case(DType dtype) {
  return {.dtype = dtype,
          .batch = 3,
          .heads_q = 4,
          .heads_k = 2,
          .seqlen_q = 75,
          .seqlen_k = 131,
          .head_dim = 40,
          .head_dim_v = 40,
          .causal = true,
          .dlse = true,
          .seed = 41};
}

/// Returns one batch entry, or some heads of it, as a dense tensor.
TensorBuffer slice(const TensorBuffer& t, std::int64_t b, std::int64_t first_head, std::int64_t heads) {
  return made(t.dtype(), {1, heads, t.shape()[2], t.shape()[3]},
              [&](auto, auto h, auto row, auto col) { return t.at(b, first_head + h, row, col); });
}

TEST_P(Independence, P10_OtherHeadsDoNotMatter) {
  const AttentionCase c = base_case(GetParam());
  const Inputs in = make_inputs(c);
  const Outputs before = run(in, "cpu");
  Inputs changed = in;  // changes key head 1 of batch entry 1, and query head 2, which reads it
  const auto change = [](const TensorBuffer& t, std::int64_t head) {
    const TensorBuffer other = copy_of(t);
    for (std::int64_t row = 0; row < t.shape()[2]; ++row) {
      for (std::int64_t col = 0; col < t.shape()[3]; ++col) other.set(1, head, row, col, 3 - t.at(1, head, row, col));
    }
    return other;
  };
  changed.q = change(in.q, 2);
  changed.k = change(in.k, 1);
  changed.v = change(in.v, 1);
  changed.dout = change(in.dout, 2);
  const Outputs after = run(changed, "cpu");
  for (std::int64_t b = 0; b < c.batch; ++b) {
    for (std::int64_t key_head = 0; key_head < c.heads_k; ++key_head) {
      const bool touched = b == 1 && key_head == 1;
      const std::int64_t group = c.heads_q / c.heads_k;
      const std::pair<const TensorBuffer*, const TensorBuffer*> by_query[] = {
          {&after.o, &before.o}, {&after.lse, &before.lse}, {&after.dq, &before.dq}};
      const std::pair<const TensorBuffer*, const TensorBuffer*> by_key[] = {{&after.dk, &before.dk},
                                                                            {&after.dv, &before.dv}};
      for (const auto& [x, y] : by_query) {
        EXPECT_EQ(slice(*x, b, key_head * group, group).bytes() != slice(*y, b, key_head * group, group).bytes(),
                  touched);
      }
      for (const auto& [x, y] : by_key) {
        EXPECT_EQ(slice(*x, b, key_head, 1).bytes() != slice(*y, b, key_head, 1).bytes(), touched);
      }
    }
  }
}

TEST_P(Independence, P10_BatchEntryAloneIsBatchEntryInTheBatch) {
  const AttentionCase c = base_case(GetParam());
  const Inputs in = make_inputs(c);
  const Outputs together = run(in, "cpu");
  Inputs alone = in;
  alone.options.batch = 1;
  const auto entry = [](const TensorBuffer& t) { return slice(t, 2, 0, t.shape()[1]); };
  alone.q = entry(in.q);
  alone.k = entry(in.k);
  alone.v = entry(in.v);
  alone.dout = entry(in.dout);
  alone.dlse = entry(*in.dlse);
  const Outputs want = {entry(together.o),  entry(together.lse), entry(together.dq),
                        entry(together.dk), entry(together.dv),  {}};
  const Outputs got = run(alone, "cpu");
  expect_same_bits("o", got.o, want.o);
  expect_same_bits("lse", got.lse, want.lse);
  // The results may differ by rounding, because backward divides the work in a way that may depend on the number of
  // heads.
  expect_near(got, want, tolerance());
}

/// Returns rows [first, first + count) of a packed tensor as a separate sequence.
TensorBuffer rows(const TensorBuffer& t, std::int64_t first, std::int64_t count) {
  return made(t.dtype(), {1, t.shape()[1], count, t.shape()[3]},
              [&](auto, auto h, auto row, auto col) { return t.at(0, h, first + row, col); });
}

TEST_P(Independence, P11_PackedSequencesAreSeparateCalls) {
  AttentionCase c = base_case(GetParam());
  c.varlen_q = {40, 1, 0, 70, 128, 3};
  c.varlen_k = {64, 9, 5, 0, 130, 2};
  c.window_left = 90;
  const Inputs in = make_inputs(c);
  const Outputs packed = run(in, "cpu");
  std::int64_t q_at = 0, k_at = 0;
  for (std::size_t s = 0; s < c.varlen_q.size(); ++s) {
    const std::int64_t q_count = c.varlen_q[s], k_count = c.varlen_k[s];
    SCOPED_TRACE(s);
    Inputs single = in;
    single.options.varlen_q.clear();
    single.options.batch = 1;
    single.options.seqlen_q = q_count;
    single.options.seqlen_k = k_count;
    const auto of_q = [&](const TensorBuffer& t) { return rows(t, q_at, q_count); };
    const auto of_k = [&](const TensorBuffer& t) { return rows(t, k_at, k_count); };
    single.q = of_q(in.q);
    single.k = of_k(in.k);
    single.v = of_k(in.v);
    single.dout = of_q(in.dout);
    single.dlse = of_q(*in.dlse);
    const Outputs want = run(single, "cpu");
    const Outputs got = {of_q(packed.o), of_q(packed.lse), of_q(packed.dq), of_k(packed.dk), of_k(packed.dv), {}};
    expect_same_bits("o", got.o, want.o);
    expect_same_bits("lse", got.lse, want.lse);
    expect_near(got, want, tolerance());
    q_at += q_count;
    k_at += k_count;
  }
}

TEST_P(Independence, P11_PaddingBehindAMaskChangesNothing) {
  AttentionCase c = base_case(GetParam());
  c.causal = false;
  const Inputs in = make_inputs(c);
  constexpr std::int64_t kPadding = 61;
  Inputs padded = in;
  padded.options.seqlen_k += kPadding;
  const auto pad = [&](const TensorBuffer& t) {  // the padding holds large finite numbers
    return made(t.dtype(), {t.shape()[0], t.shape()[1], c.seqlen_k + kPadding, t.shape()[3]},
                [&](auto b, auto h, auto row, auto col) { return row < c.seqlen_k ? t.at(b, h, row, col) : 1e4; });
  };
  padded.k = pad(in.k);
  padded.v = pad(in.v);
  padded.mask = made(DType::kBool, {1, 1, 1, c.seqlen_k + kPadding},
                     [&](auto, auto, auto, auto col) { return col < c.seqlen_k ? 1.0 : 0.0; });
  const Outputs got = run(padded, "cpu");
  const Outputs want = run(in, "cpu");
  const auto cut = [&](const TensorBuffer& t) {
    return made(t.dtype(), want.dk.shape(), [&](auto... at) { return t.at(at...); });
  };
  const Outputs kept = {got.o, got.lse, got.dq, cut(got.dk), cut(got.dv), {}};
  expect_near(kept, want, tolerance());
  for (const TensorBuffer* t : {&got.dk, &got.dv}) {
    for (std::int64_t row = c.seqlen_k; row < c.seqlen_k + kPadding; ++row) ASSERT_EQ(t->at(2, 1, row, 3), 0) << row;
  }
}

TEST_P(Independence, P17_RepeatsAreBitEqual) {
  AttentionCase c = base_case(GetParam());
  c.bias = Broadcast{false, false, true};
  c.dropout_p = 0.2;
  const Inputs in = make_inputs(c);
  const Outputs first = run(in, "cpu");
  const int repeats = ATTEND_TEST_STRIDE > 1 ? 10 : 100;
  std::printf("%d repeats\n", repeats);
  for (int n = 1; n < repeats && !HasFailure(); ++n) expect_same_bits(run(in, "cpu"), first);
}

TEST_P(Independence, P18_LaterKeysGetNoGradientFromEarlierRows) {
  AttentionCase c = base_case(GetParam());
  c.dlse = false;
  const Inputs in = make_inputs(c);
  const TensorBuffer all = copy_of(in.dout);
  for (const std::int64_t row : {0L, 1L, 31L, 63L, 64L, 74L}) {
    SCOPED_TRACE(row);
    in.dout.generate([&](auto b, auto h, auto i, auto col) { return i == row ? all.at(b, h, i, col) : 0.0; });
    const Outputs out = run(in, "cpu");
    const std::int64_t last_key = row + c.seqlen_k - c.seqlen_q;
    const auto check = [&](const char* name, const TensorBuffer& t, auto may_differ_from_zero) {
      t.generate([&](auto b, auto h, auto i, auto col) {
        const double x = t.at(b, h, i, col);
        EXPECT_TRUE(x == 0 || may_differ_from_zero(i)) << name << " " << i << " " << x;
        return x;
      });
      EXPECT_GT(largest_magnitude(t.values()), 0) << name;
    };
    check("dk", out.dk, [&](std::int64_t j) { return j <= last_key; });
    check("dv", out.dv, [&](std::int64_t j) { return j <= last_key; });
    check("dq", out.dq, [&](std::int64_t i) { return i == row; });
  }
}

TEST_P(Independence, P19_EveryLayoutGivesTheSameBits) {
  AttentionCase c = base_case(GetParam());
  c.bias = Broadcast{true, false, true};
  c.mask = Broadcast{false, true, true};
  const Outputs want = run(make_inputs(c), "cpu");
  for (const CaseLayout layout : {CaseLayout::kBHSD, CaseLayout::kBSHD, CaseLayout::kPadded, CaseLayout::kFused}) {
    for (std::int64_t offset = 0; offset < 16; ++offset) {
      c.layout = layout;
      c.base_offset = offset;
      SCOPED_TRACE(describe(c));
      expect_same_bits(run(make_inputs(c), "cpu"), want);
      if (HasFailure()) return;
    }
  }
}

/// q, k, v and dout each have a different layout. o, lse and the gradients also have different layouts.
TEST_P(Independence, P19_EachTensorMayHaveALayoutOfItsOwn) {
  const AttentionCase c = base_case(GetParam());
  const Inputs in = make_inputs(c);
  const Outputs want = run(in, "cpu");
  constexpr Placement kPlacements[] = {
      {Layout::kBHSD, 0}, {Layout::kBSHD, 0}, {Layout::kPadded, 0}, {Layout::kBSHD, 3}};
  constexpr std::size_t kNum = std::size(kPlacements);
  for (std::size_t number = 0; number < kNum * kNum * kNum * kNum; number += ATTEND_TEST_STRIDE) {
    std::size_t left = number;
    const auto next = [&] {
      const Placement placement = kPlacements[left % kNum];
      left /= kNum;
      return placement;
    };
    Inputs moved = in;
    for (TensorBuffer* t : {&moved.q, &moved.k, &moved.v, &moved.dout}) {
      const TensorBuffer from = *t;
      *t = TensorBuffer(from.dtype(), from.shape(), next());
      t->generate([&](auto... at) { return from.at(at...); });
    }
    left = number * 7 + 3;  // selects another combination of layouts for the outputs
    Outputs got = make_outputs(moved);
    for (TensorBuffer* t : {&got.o, &got.dq, &got.dk, &got.dv}) *t = TensorBuffer(t->dtype(), t->shape(), next());
    run_forward(moved, got, "cpu");
    run_backward(moved, got, "cpu");
    SCOPED_TRACE(number);
    expect_same_bits(got, want);
    for (const TensorBuffer* t : {&got.o, &got.lse, &got.dq, &got.dk, &got.dv}) EXPECT_TRUE(t->gaps_intact());
    if (HasFailure()) return;
  }
}

TEST_P(Independence, P19_FusedQkvOfOneLengthGivesTheSameBits) {
  AttentionCase c = base_case(GetParam());
  c.seqlen_q = c.seqlen_k;
  const Outputs want = run(make_inputs(c), "cpu");
  // Q, k and v share one buffer in which their rows alternate, and so do their gradients.
  c.layout = CaseLayout::kFused;
  expect_same_bits(run(make_inputs(c), "cpu"), want);
}

TEST_P(Independence, P19_StrideZeroInputsAreTheirCopies) {
  AttentionCase c = base_case(GetParam());
  Inputs in = make_inputs(c);
  const auto one = [](const TensorBuffer& t, const Shape& shape) {
    return made(t.dtype(), shape, [&](auto... at) { return t.at(at...); });
  };
  const Shape k = in.k.shape(), o = in.dout.shape();
  Inputs broadcast = in;
  broadcast.k = one(in.k, {1, 1, k[2], k[3]}).expanded(k);     // the same keys for all heads
  broadcast.v = one(in.v, {k[0], k[1], 1, k[3]}).expanded(k);  // all keys have the same value
  broadcast.q = one(in.q, {1, o[1], o[2], o[3]}).expanded(o);  // the same queries for all batch entries
  broadcast.dout = one(in.dout, {1, 1, 1, o[3]}).expanded(o);
  Inputs copies = broadcast;
  for (TensorBuffer* t : {&copies.q, &copies.k, &copies.v, &copies.dout}) *t = copy_of(*t);
  expect_same_bits(run(broadcast, "cpu"), run(copies, "cpu"));
}

}  // namespace
}  // namespace attend::test
