// Edge cases of the softmax, on every family that `auto` picks. Some rows see no key. In other rows the first tiles are
// masked or lse is far from 0. The tests also run every mask on short sequences, and problems without rows, heads or
// batch entries.
#include <array>
#include <cmath>

#include <gmock/gmock.h>

#include "gpu/families.hpp"
#include "gpu/forward_checks.hpp"
#include "gpu/mask_rule.hpp"
#include "support/expect.hpp"

namespace attend::test {
namespace {

class EdgeRows : public FamilyTest {};

INSTANTIATE_TEST_SUITE_P(Families, EdgeRows, testing::ValuesIn(kFamilies), kFamilyName);

class EdgeRowsOfBackward : public FamilyTest {};

INSTANTIATE_TEST_SUITE_P(Families, EdgeRowsOfBackward, testing::ValuesIn(kBackwardFamilies), kFamilyName);

/// Returns a causal case with more rows than keys, so the first rows see no key.
AttentionCase empty_rows_case() {
  AttentionCase c = plain(DType::kBF16, 4, 2, 700, 130, 64, true);
  c.dlse = true;
  c.deterministic = true;
  return c;
}

/// Writes NaN and infinities into dout of all rows in row tiles that see no key (for empty_rows_case()). Returns the
/// number of these rows.
std::int64_t spoil_dout(const Inputs& in) {
  constexpr std::int64_t kLargestTile = 256;
  const AttentionCase& c = in.options;
  const std::int64_t rows = c.seqlen_q - c.seqlen_k - kLargestTile;
  for (std::int64_t h = 0; h < c.heads_q; ++h) {
    for (std::int64_t i = 0; i < rows; ++i) in.dout.set(0, h, i, i % c.head_dim_v, i % 2 == 0 ? NAN : INFINITY);
  }
  return rows;
}

/// In rows that see no key, o and dq must be exactly 0. In row tiles that see no key, dout and dlse must not change any
/// other result.
TEST_P(EdgeRows, ThatSeeNothingAreZeroAndHarmless) {
  const AttentionCase c = empty_rows_case();
  const std::int64_t num_empty = c.seqlen_q - c.seqlen_k;
  const Inputs in = make_inputs(c);
  const Outputs clean = run(in, GetParam());
  const std::int64_t spoilt = spoil_dout(in);
  for (std::int64_t h = 0; h < c.heads_q; ++h) {
    for (std::int64_t i = 0; i < spoilt; ++i) in.dlse->set(0, h, i, 0, NAN);
  }
  const Outputs out = run(in, GetParam());
  for (std::int64_t h = 0; h < c.heads_q; ++h) {
    for (std::int64_t i = 0; i < num_empty; ++i) {
      ASSERT_EQ(out.lse.at(0, h, i, 0), -INFINITY) << h << " " << i;
      for (std::int64_t col = 0; col < c.head_dim; ++col) {
        ASSERT_EQ(out.o.at(0, h, i, col), 0) << h << " " << i << " " << col;
        if (has_backward(GetParam())) {
          ASSERT_EQ(out.dq.at(0, h, i, col), 0) << h << " " << i << " " << col;
        }
      }
    }
  }
  expect_same_bits(out, clean);
}

/// If there are no keys, all results are 0 and no key is read.
TEST_P(EdgeRows, WithoutKeysAreZero) {
  for (const bool packed : {false, true}) {
    AttentionCase c = plain(DType::kBF16, 2, 1, 70, 0, 64, false);
    if (packed) c.varlen_q = {70, 3}, c.varlen_k = {0, 0};
    const Inputs in = make_inputs(c);
    in.dout.fill(NAN);
    const Outputs out = run(in, GetParam());
    for (const double x : out.lse.values()) ASSERT_EQ(x, -INFINITY);
    for (const double x : out.o.values()) ASSERT_EQ(x, 0);
    if (!has_backward(GetParam())) continue;
    for (const double x : out.dq.values()) ASSERT_EQ(x, 0);
  }
}

/// Without keys, the sink is the only term of a row. Then lse equals the sink, and the sink's gradient is the sum of
/// dlse.
TEST_P(EdgeRows, WithoutKeysHaveTheirSink) {
  for (const bool packed : {false, true}) {
    AttentionCase c = plain(DType::kBF16, 2, 1, 70, 0, 64, false);
    if (packed) c.varlen_q = {70, 3}, c.varlen_k = {0, 0};
    c.sinks = c.dlse = true;
    const Inputs in = make_inputs(c);
    in.sinks->generate([](auto, auto h, auto, auto) { return 1.5 - 4 * static_cast<double>(h); });
    in.dlse->fill(0.5);
    const Outputs out = run(in, GetParam());
    for (const double x : out.o.values()) ASSERT_EQ(x, 0);
    for (std::int64_t h = 0; h < c.heads_q; ++h) {
      for (std::int64_t i = 0; i < out.lse.shape()[2]; ++i) ASSERT_EQ(out.lse.at(0, h, i, 0), in.sinks->at(0, h, 0, 0));
      if (has_backward(GetParam())) {
        EXPECT_EQ(out.dsinks->at(0, h, 0, 0), 0.5 * static_cast<double>(out.lse.shape()[2]));
      }
    }
    if (!has_backward(GetParam())) continue;
    for (const double x : out.dq.values()) ASSERT_EQ(x, 0);
  }
}

/// In a row that sees no key, dout must not affect the sink's gradient.
TEST_P(EdgeRowsOfBackward, ThatSeeOnlyASinkTakeNothingOfDout) {
  AttentionCase c = empty_rows_case();
  c.sinks = true;
  const Inputs in = make_inputs(c);
  const Outputs clean = run(in, GetParam());
  spoil_dout(in);
  const Outputs out = run(in, GetParam());
  for (std::int64_t h = 0; h < c.heads_q; ++h) ASSERT_EQ(out.lse.at(0, h, 0, 0), in.sinks->at(0, h, 0, 0));
  expect_same_bits(out, clean);
}

/// All scores are near -1000, and the tiles that are processed first are masked for some or all rows. If a kernel
/// wrongly started the row maximum at 0 or reset it to 0, the maximum would stay 0.
std::vector<AttentionCase> negative_score_cases() {
  AttentionCase c = plain(DType::kBF16, 14, 2, 88, 448, 64, true);  // 7 query heads per key head
  std::vector<AttentionCase> cases = {c, c, c, c};
  cases[1].window_left = 100;
  cases[2].seqlen_q = 448, cases[2].seqlen_k = 300;  // some rows see no key
  cases[3].causal = false, cases[3].window_left = 20, cases[3].window_right = 5, cases[3].seqlen_q = 448;
  return cases;
}

/// Adds scale * q * k to every score. For this, one channel is set to the constant `q` in every query row and to `k` in
/// every key.
Inputs shifted(const AttentionCase& c, double q, double k) {
  Inputs in = make_inputs(c);
  for (const auto& [t, number] : {std::pair{&in.q, q}, {&in.k, k}}) {
    t->generate([&, t = t, number = number](auto b, auto h, auto row, auto col) {
      return col == 0 ? number : t->at(b, h, row, col);
    });
  }
  return in;
}

TEST_P(EdgeRows, OfNegativeScoresBehindMaskedTilesStayInBudget) {
  for (const AttentionCase& c : negative_score_cases()) check_backend(GetParam(), shifted(c, 80, -100));
}

/// Returns a case of 200 packed sequences with 1 to 200 keys, so that the last key tile has every size. The number of
/// rows varies. shifted() then moves lse near a chosen value.
AttentionCase remainder_case() {
  AttentionCase c = plain(DType::kBF16, 1, 1, 0, 0, 64, false);
  constexpr std::int64_t kRows[] = {1, 64, 5, 129};
  for (std::int64_t keys = 1; keys <= 200; ++keys) {
    c.varlen_q.push_back(kRows[keys % 4]);
    c.varlen_k.push_back(keys);
  }
  return c;
}

class LseTargets : public GpuTest, public testing::WithParamInterface<std::tuple<const char*, int>> {};

TEST_P(LseTargets, AtEachRemainderOfATileStayInBudget) {
  const auto& [compute, target] = GetParam();
  // Adds 8 * target * scale = target to every score, because the scale is 1/8.
  const Inputs in = shifted(remainder_case(), 8, target);
  if (!lack_of(compute, in).empty()) GTEST_SKIP() << lack_of(compute, in);
  check_backend(compute, in);
}

INSTANTIATE_TEST_SUITE_P(Families, LseTargets,
                         testing::Combine(testing::ValuesIn(kBackwardFamilies),
                                          testing::Values(-200, -100, 0, 100, 200)),
                         [](const auto& test) {
                           const int target = std::get<1>(test.param);
                           return std::string(std::get<0>(test.param)) + (target < 0 ? "_minus_" : "_") +
                                  std::to_string(std::abs(target));
                         });

/// Runs every mask on every pair of lengths up to 9.
TEST_P(EdgeRows, OfEveryMaskSeeWhatTheRuleSays) {
  check_every_mask(GetParam(), DType::kBF16, 8, 16);
}

std::vector<AttentionCase> outlier_cases() {
  std::vector<AttentionCase> cases;
  for (const std::int64_t head_dim : {64, 128, 256}) {
    for (const bool causal : {false, true}) {
      cases.push_back(plain(DType::kBF16, 4, 2, 200, 270, head_dim, causal));
      cases.back().fill = Fill::kOutlier;
    }
  }
  return cases;
}

/// The scores reach 1e5, as with an outlier channel in real models.
TEST_P(EdgeRows, OfAnOutlierChannelStayInBudget) {
  for (const AttentionCase& c : outlier_cases()) check_backend(GetParam(), make_inputs(c));
}

/// Calls without any rows, heads or sequences must not fail, and must not write anything.
TEST_P(EdgeRows, OfNoEntriesNoHeadsAndNoSequencesAreNoError) {
  AttentionCase c = plain(DType::kBF16, 2, 1, 70, 90, 64, true);
  c.sinks = true;
  std::vector<AttentionCase> cases = {c, c, c, c};
  cases[0].batch = 0;
  cases[1].heads_q = 0, cases[1].heads_k = 1;
  cases[2].seqlen_q = 0;
  cases[3].varlen_q = {0, 0}, cases[3].varlen_k = {0, 70};
  for (const AttentionCase& empty : cases) {
    SCOPED_TRACE(describe(empty));
    const Inputs in = make_inputs(empty);
    if (const std::string lack = lack_of(GetParam(), in); !lack.empty()) {
      EXPECT_EQ(lack, "q: heads 0, compute 'sm80_backward' allows 1 and more");
      continue;
    }
    const Outputs out = run(in, GetParam());
    for (const TensorBuffer* t : {&out.o, &out.lse, &out.dq, &out.dk, &out.dv}) EXPECT_TRUE(t->gaps_intact());
    if (!has_backward(GetParam())) continue;
    for (const TensorBuffer* t : {&out.dk, &out.dv, &*out.dsinks}) {
      for (const double x : t->values()) ASSERT_EQ(x, 0) << "no row has seen a key, and there is no row";
    }
  }
}

/// A bias that rows or batch entries share has a gradient even if there are no rows or batch entries. A family that
/// computes this gradient must write zeros.
TEST_P(EdgeRowsOfBackward, OfNoRowsAndNoSequencesGiveTheBiasAGradientOfZero) {
  AttentionCase no_rows = plain(DType::kF16, 2, 1, 0, 128, 64, false), no_sequences = no_rows;
  no_rows.bias = Broadcast{false, true, false};
  no_sequences.bias = Broadcast{false, true, true};
  no_sequences.batch = 0, no_sequences.seqlen_q = 70;
  for (const AttentionCase& c : {no_rows, no_sequences}) {
    for (const std::string_view compute : {std::string_view(GetParam()), std::string_view("auto")}) {
      SCOPED_TRACE(std::string(compute) + ": " + describe(c));
      const Inputs in = make_inputs(c);
      if (compute == "sm90_backward") {
        EXPECT_THAT(lack_of(compute, in), testing::StartsWith("dbias: "));
        continue;
      }
      const Outputs out = run(in, compute);
      for (const double x : out.dbias->values()) ASSERT_EQ(x, 0);
    }
  }
}

/// The sink here is the lowest finite number. In a row that sees no key, lse must equal the sink. In other rows the
/// sink must have no weight.
TEST_P(EdgeRows, BesideTheLowestSinkAreAsWithoutOne) {
  for (const double softcap : {0.0, 30.0}) {
    AttentionCase c = empty_rows_case();
    c.softcap = softcap;
    c.sinks = true;
    const Inputs in = make_inputs(c);
    in.sinks->fill(-1000);
    const Outputs want = run(in, GetParam());
    in.sinks->fill(-0x1.fep127);  // lowest finite bfloat16
    Outputs out = run(in, GetParam());
    for (std::int64_t h = 0; h < c.heads_q; ++h) ASSERT_EQ(out.lse.at(0, h, 0, 0), -0x1.fep127);
    out.lse = want.lse;
    expect_same_bits(out, want);
  }
}

class AheadEdges : public FamilyTest {};

TEST_P(AheadEdges, CompilesWhatEdgeRowsNeed) {
  std::vector<AttentionCase> cases = {empty_rows_case(), remainder_case()};
  for (const auto& more : {negative_score_cases(), outlier_cases()})
    cases.insert(cases.end(), more.begin(), more.end());
  for (int mask = 0; mask < 3; ++mask) {
    AttentionCase c = plain(DType::kBF16, 1, 1, 0, 0, 8, mask == 1);
    c.head_dim_v = 16;
    c.varlen_q = c.varlen_k = {3};
    if (mask == 2) c.window_left = 1;
    cases.push_back(c);
  }
  compile_ahead(GetParam(), cases);
}

INSTANTIATE_TEST_SUITE_P(Ahead, AheadEdges, testing::ValuesIn(kFamilies), kFamilyName);

}  // namespace
}  // namespace attend::test
