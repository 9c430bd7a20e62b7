// Tests the comparator. The comparator must accept a sound result and reject every planted fault, in every dtype.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "support/compare.hpp"
#include "support/tolerances.hpp"

namespace attend::test {
namespace {

AttentionCase planted_case(DType dtype) {
  return {.dtype = dtype,
          .batch = 2,
          .heads_q = 4,
          .heads_k = 2,
          .seqlen_q = 96,
          .seqlen_k = 130,
          .head_dim = 64,
          .head_dim_v = 64,
          .seed = 7};
}

/// A problem, its expected values, and a result without faults: that of the standard implementation.
struct SoundResult {
  explicit SoundResult(DType dtype) : in(make_inputs(planted_case(dtype))), standard(run_standard(in)) {
    const Outputs reference = run(as_f64(in), "reference");
    truth = {reference.o.values(), reference.lse.values(), reference.dq.values(), reference.dk.values(),
             reference.dv.values()};
  }
  Inputs in;
  Standard standard;
  std::vector<std::vector<double>> truth;
};

class Comparator : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    static std::map<DType, SoundResult> computed;  // computed once per dtype, because the reference is slow
    const SoundResult& sound = computed.try_emplace(GetParam(), GetParam()).first->second;
    in = sound.in;
    standard = sound.standard;
    truth = sound.truth;
  }

  static constexpr int kTensors = 5;
  static constexpr int kLse = 1;

  [[nodiscard]] const StandardTensor& tensor(int n) const {
    const StandardTensor* all[] = {&standard.o, &standard.lse, &standard.dq, &standard.dk, &standard.dv};
    return *all[n];
  }

  [[nodiscard]] Comparison judge(int n, const std::vector<double>& result) const {
    if (n == kLse) return compare_lse(result, truth[n], standard.lse);
    return compare({"tensor", GetParam(), n == 0 ? kForwardFactor : kGradientFactor, result, truth[n], tensor(n)});
  }

  /// Applies damage(values, n) to each tensor in turn. Expects that the comparator rejects the damaged tensor.
  template <class Damage>
  void expect_caught(Damage damage) const {
    for (int n = 0; n < kTensors; ++n) {
      std::vector<double> result = tensor(n).value;
      damage(result, n);
      const Comparison c = judge(n, result);
      EXPECT_FALSE(c.ok) << "tensor " << n << ": " << c.report;
      EXPECT_NE(c.report.find("(b, h, row, col)"), std::string::npos) << "the report must name positions";
    }
  }

  Inputs in;
  Standard standard;
  std::vector<std::vector<double>> truth;
};

TEST_P(Comparator, AcceptsASoundResult) {
  for (int n = 0; n < kTensors; ++n) {
    const Comparison c = judge(n, tensor(n).value);
    EXPECT_TRUE(c.ok) << "tensor " << n << ": " << c.report;
    EXPECT_GT(c.budget, 0);
  }
}

TEST_P(Comparator, AcceptsTheTruth) {
  for (int n = 0; n < kTensors; ++n) EXPECT_TRUE(judge(n, truth[n]).ok) << "tensor " << n;
}

TEST_P(Comparator, CatchesOneWrongRow) {
  expect_caught([this](std::vector<double>& x, int n) {
    const auto cols = static_cast<std::size_t>(tensor(n).shape[3]);
    const std::size_t row = 5;
    for (std::size_t c = 0; c < cols; ++c) x[row * cols + c] = x[(row + 1) * cols + c];
  });
}

TEST_P(Comparator, CatchesOneZeroRow) {
  expect_caught([this](std::vector<double>& x, int n) {
    const auto cols = tensor(n).shape[3];
    std::fill_n(x.end() - cols, cols, 0.0);
  });
}

TEST_P(Comparator, CatchesOneNaN) {
  expect_caught([](std::vector<double>& x, int) { x[x.size() / 2] = NAN; });
}

TEST_P(Comparator, CatchesOneInfinity) {
  expect_caught([](std::vector<double>& x, int) { x.back() = INFINITY; });
}

TEST_P(Comparator, CatchesAFiniteNumberWhereTheTruthIsNot) {
  for (const double special : {double{NAN}, double{INFINITY}, -double{INFINITY}}) {
    for (int n = 0; n < kTensors; ++n) {
      std::vector<double> kept = truth[n];
      truth[n][3] = special;
      EXPECT_FALSE(judge(n, tensor(n).value).ok) << "tensor " << n << ", truth " << special;
      std::vector<double> same = tensor(n).value;
      same[3] = special;
      EXPECT_TRUE(judge(n, same).ok) << "tensor " << n << ": the same class in the same place is right";
      same[3] = std::isnan(special) ? INFINITY : -special;
      EXPECT_FALSE(judge(n, same).ok) << "tensor " << n << ": another class is wrong";
      truth[n] = kept;
    }
  }
}

TEST_P(Comparator, CatchesSwappedHeads) {
  expect_caught([this](std::vector<double>& x, int n) {
    const auto head = tensor(n).shape[2] * tensor(n).shape[3];
    std::swap_ranges(x.begin(), x.begin() + head, x.begin() + head);
  });
}

TEST_P(Comparator, CatchesAScaleOfOnePercent) {
  expect_caught([](std::vector<double>& x, int n) {
    for (double& value : x) value = n == kLse ? value + std::log(1.01) : value * 1.01;
  });
}

TEST_P(Comparator, CatchesAShiftedLseRow) {
  std::vector<double> lse = standard.lse.value;
  lse[17] += 1e-3;
  EXPECT_FALSE(judge(kLse, lse).ok);
}

TEST_P(Comparator, CatchesADroppedKey) {
  Inputs fewer = in;
  fewer.options.mask = Broadcast{false, false, false};
  fewer.mask = TensorBuffer(DType::kBool, {1, 1, 1, in.options.seqlen_k});
  fewer.mask->generate([&](auto, auto, auto, auto col) { return col == in.options.seqlen_k - 1 ? 0.0 : 1.0; });
  const Standard wrong = run_standard(fewer);
  EXPECT_FALSE(judge(0, wrong.o.value).ok);
  EXPECT_FALSE(judge(1, wrong.lse.value).ok);
  EXPECT_FALSE(judge(2, wrong.dq.value).ok);
  EXPECT_FALSE(judge(3, wrong.dk.value).ok);
  EXPECT_FALSE(judge(4, wrong.dv.value).ok);
}

TEST_P(Comparator, CatchesAMissingSize) {
  std::vector<double> o = standard.o.value;
  o.pop_back();
  EXPECT_FALSE(judge(0, o).ok);
}

INSTANTIATE_TEST_SUITE_P(AllDtypes, Comparator, testing::Values(DType::kF32, DType::kF16, DType::kBF16),
                         [](const auto& test) { return std::string(dtype_name(test.param)); });

// The standard's error in one or two rows depends on chance, so these rows share the budget of the rows before them.
// Errors above that budget must still be rejected.
TEST(Blocks, AFewRowsAtTheEndAreOfTheOneBefore) {
  const auto judged = [](std::int64_t rows, double error_of_last_row) {
    constexpr std::int64_t kCols = 4;
    const auto n = static_cast<std::size_t>(rows * kCols);
    const std::vector<double> truth(n, 1.0);
    StandardTensor standard = {{1, 1, rows, kCols}, truth, std::vector<double>(n), std::vector<double>(n)};
    for (std::int64_t i = 0; i < kRowsPerBlock * kCols; ++i) standard.value[static_cast<std::size_t>(i)] = 1.25;
    std::vector<double> result = truth;
    result.back() += error_of_last_row;
    return compare({"o", DType::kF32, kForwardFactor, result, truth, standard}).ok;
  };
  EXPECT_TRUE(judged(kRowsPerBlock + 1, 0.45));
  EXPECT_FALSE(judged(kRowsPerBlock + 1, 0.55));
  EXPECT_TRUE(judged(kRowsPerBlock + kFewRows - 1, 0.45));
  EXPECT_FALSE(judged(kRowsPerBlock + kFewRows, 0.45)) << "a block of their own";
}

// Equal softmax entries have equal rounding errors, so the slope of result against truth may deviate from 1. A
// deviation of less than half a unit in the last place must be allowed only if the case requests it.
TEST(Slope, MayBeOffByItsFloor) {
  constexpr std::int64_t kRows = 64, kCols = 16;
  constexpr auto kCount = static_cast<std::size_t>(kRows * kCols);
  std::vector<double> truth(kCount);
  for (std::size_t i = 0; i < kCount; ++i) truth[i] = 1 + static_cast<double>(i % 7);
  StandardTensor standard = {{1, 1, kRows, kCols}, truth, std::vector<double>(kCount), std::vector<double>(kCount)};
  const auto judged = [&](double factor, double slope_floor) {
    std::vector<double> result = truth;
    for (double& x : result) x *= factor;
    for (std::size_t i = 0; i < kCount; ++i) standard.walk[i] = 0.01;  // budget for single entries
    return compare({"o", DType::kBF16, kForwardFactor, result, truth, standard, nullptr, slope_floor}).ok;
  };
  const double half = unit_roundoff(DType::kBF16) / 2;
  EXPECT_FALSE(judged(1 + 0.5 * half, 0));
  EXPECT_TRUE(judged(1 + 0.5 * half, half));
  EXPECT_FALSE(judged(1 + 1.1 * half, half));
}

// A sink's gradient is one number per head, with the error budget of a sum. The comparator must reject a factor that
// exceeds the budget, and every term that a backward may omit.
TEST_P(Comparator, CatchesWrongGradientsOfSinks) {
  AttentionCase c = planted_case(GetParam());
  c.sinks = c.dlse = true;
  const Inputs with_sinks = make_inputs(c);
  const Standard of_standard = run_standard(with_sinks);
  const std::vector<double> want = run(as_f64(with_sinks), "reference").dsinks->values();
  const auto judged = [&](const std::vector<double>& result) {
    return compare({"dsinks", GetParam(), kGradientFactor, result, want, *of_standard.dsinks});
  };
  const std::vector<double> got = run(with_sinks, "cpu").dsinks->values();
  EXPECT_TRUE(judged(got).ok) << judged(got).report;

  Inputs without_dlse = with_sinks;
  without_dlse.dlse.reset();
  Inputs of_each = with_sinks;
  of_each.sinks = TensorBuffer(c.dtype, {c.batch, c.heads_q, 1, 1});
  of_each.sinks->generate([&](auto, auto h, auto, auto) { return with_sinks.sinks->at(0, h, 0, 0); });
  std::vector<double> of_one = run(of_each, "cpu").dsinks->values();
  of_one.resize(want.size());
  std::vector<double> scaled = got, moved = got, cut = got;
  for (double& x : scaled) x *= is_half(c.dtype) ? 1 + 20 * unit_roundoff(c.dtype) : 1.001;
  std::rotate(moved.begin(), moved.begin() + 1, moved.end());
  cut.back() = 0;
  for (const std::vector<double>& wrong : {run(without_dlse, "cpu").dsinks->values(), of_one, scaled, moved, cut}) {
    EXPECT_FALSE(judged(wrong).ok) << judged(wrong).report;
  }
}

TEST(TensorBuffer, SeesAWriteOutsideOfItself) {
  for (const Layout layout : {Layout::kBHSD, Layout::kBSHD, Layout::kPadded}) {
    const TensorBuffer t(DType::kF32, {2, 3, 4, 5}, {layout, 3});
    EXPECT_TRUE(t.gaps_intact());
    t.fill(1.5);
    EXPECT_TRUE(t.gaps_intact());
    EXPECT_EQ(t.values(), std::vector<double>(2 * 3 * 4 * 5, 1.5));
  }
  const TensorBuffer padded(DType::kF32, {1, 1, 2, 5}, {Layout::kPadded, 0});
  static_cast<float*>(padded.view().data)[5] = 0;  // writes the first padding element after row 0
  EXPECT_FALSE(padded.gaps_intact());
}

TEST(TensorBuffer, StartsAsNaN) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kF64}) {
    const TensorBuffer t(dtype, {1, 1, 1, 3});
    for (const double x : t.values()) EXPECT_TRUE(std::isnan(x)) << dtype_name(dtype);
  }
}

TEST(TensorBuffer, FusedViewsShareOneBuffer) {
  const auto qkv = TensorBuffer::fused(DType::kF16, {{2, 4, 3, 8}, {2, 2, 3, 8}, {2, 2, 3, 8}}, 5);
  EXPECT_EQ(qkv[0].view().stride, (Shape{3 * 8 * 8, 8, 8 * 8, 1}));
  EXPECT_EQ(static_cast<char*>(qkv[1].view().data) - static_cast<char*>(qkv[0].view().data), 4 * 8 * 2);
  for (const TensorBuffer& t : qkv) t.fill(1);
  EXPECT_TRUE(qkv[0].gaps_intact());
}

// The standard's error in a single row depends on chance, so the last row shares the budget of the rows before it.
TEST(ComparatorOfLse, MeasuresAFewRowsAtTheEndOfAHeadWithThoseBefore) {
  constexpr double kError = 1.0;
  for (const std::int64_t more : {std::int64_t{1}, kFewRows - 1, kFewRows}) {
    const auto rows = static_cast<std::size_t>(kRowsPerBlock + more);
    const std::vector<double> truth(2 * rows);
    StandardTensor standard = {{1, 2, static_cast<std::int64_t>(rows), 1}, truth, truth, truth};
    standard.value[rows + 3] = kError;  // row of the second head
    std::vector<double> lse = truth;
    lse.back() = kForwardFactor * kError;
    EXPECT_EQ(compare_lse(lse, truth, standard).ok, more < kFewRows) << more << " more rows";
    lse.back() = 0;
    lse[rows - 1] = kForwardFactor * kError;
    EXPECT_FALSE(compare_lse(lse, truth, standard).ok) << "the first head's standard has no error";
  }
}

}  // namespace
}  // namespace attend::test
