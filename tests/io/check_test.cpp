// Tests the comparison behind --check. Planted faults must fail, and NaN must never pass.
#include "check/check.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string_view>
#include <tuple>
#include <utility>

#include "core/elements.hpp"
#include "core/score_options.hpp"
#include "io/random_normal.hpp"

namespace attend::test {
namespace {

using cli::Mode;
using cli::Workload;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

io::HostTensor tensor_of(std::vector<double> values) {
  io::HostTensor tensor(DType::kF64, {1, 1, 1, static_cast<std::int64_t>(values.size())});
  for (std::size_t i = 0; i < values.size(); ++i) core::store(tensor.view().data, DType::kF64, i, values[i]);
  return tensor;
}

cli::TensorError errors(std::vector<double> result, std::vector<double> reference) {
  return cli::compare("x", tensor_of(std::move(result)).view(), tensor_of(std::move(reference)).view());
}

TEST(Compare, Measures) {
  const cli::TensorError error = errors({1, 2.5, -4, 0}, {1, 2, -3, 0});
  EXPECT_DOUBLE_EQ(error.max_abs, 1);
  EXPECT_DOUBLE_EQ(error.mean_abs, 1.5 / 4);
  EXPECT_DOUBLE_EQ(error.mse, 1.25 / 4);
  EXPECT_DOUBLE_EQ(error.max_rel, 1.0 / 3);
}

TEST(Compare, NonFiniteEntriesHaveToAgree) {
  EXPECT_EQ(errors({kNan, kInfinity, -kInfinity, 1}, {kNan, kInfinity, -kInfinity, 1}).max_abs, 0);
  EXPECT_EQ(errors({kNan, 1}, {1, 1}).max_abs, kInfinity);
  EXPECT_EQ(errors({1, 1}, {kNan, 1}).max_abs, kInfinity);
  EXPECT_EQ(errors({kInfinity, 1}, {-kInfinity, 1}).max_abs, kInfinity);
  EXPECT_EQ(errors({kInfinity, 1}, {1, 1}).max_abs, kInfinity);
  EXPECT_EQ(errors({kNan}, {kInfinity}).max_abs, kInfinity);
}

io::HostTensor random_tensor(DType dtype, const Shape& shape, io::NormalStream stream) {
  io::HostTensor tensor(DType::kF32, shape);
  io::fill_normal({static_cast<float*>(tensor.view().data), static_cast<std::size_t>(tensor.numel())}, 3, stream, 0);
  return tensor.converted(dtype);
}

Workload solved(DType dtype) {
  Workload w;
  w.options.causal = true;
  w.q = random_tensor(dtype, {2, 4, 33, 16}, io::NormalStream::kQ);
  w.k = random_tensor(dtype, {2, 2, 47, 16}, io::NormalStream::kK);
  w.v = random_tensor(dtype, {2, 2, 47, 24}, io::NormalStream::kV);
  w.dout = random_tensor(dtype, {2, 4, 33, 24}, io::NormalStream::kDOut);
  w.allocate_forward();
  w.allocate_backward();
  w.forward("reference");
  w.backward("reference");
  return w;
}

bool all_pass(const std::vector<cli::TensorError>& tensors) {
  for (const cli::TensorError& tensor : tensors) {
    if (!tensor.passed) return false;
  }
  return !tensors.empty();
}

class CheckEveryType : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Types, CheckEveryType, testing::Values(DType::kF32, DType::kF16, DType::kBF16, DType::kF64),
                         [](const auto& type) { return dtype_name(type.param); });

TEST_P(CheckEveryType, ARightResultPasses) {
  const cli::CheckReport report = cli::check(solved(GetParam()), Mode::kBoth);
  EXPECT_EQ(report.forward.size(), 2U);
  EXPECT_EQ(report.backward.size(), 3U);
  EXPECT_TRUE(all_pass(report.forward));
  EXPECT_TRUE(all_pass(report.backward));
}

TEST_P(CheckEveryType, OneWrongElementFails) {
  for (io::HostTensor Workload::*member : {&Workload::o, &Workload::lse, &Workload::dq, &Workload::dk, &Workload::dv}) {
    for (const double wrong : {kNan, kInfinity, 0.0, 30.0}) {
      Workload w = solved(GetParam());
      const Tensor& t = (w.*member).view();
      core::store(t.data, t.dtype, t.numel() / 2, wrong);
      const cli::CheckReport report = cli::check(w, Mode::kBoth);
      const bool passed = all_pass(report.forward) && all_pass(report.backward);
      // In half precision, zero may be close to the right value of a gradient by chance. The other wrong values are
      // never close to it.
      EXPECT_TRUE(!passed || wrong == 0.0) << wrong;
    }
  }
}

TEST_P(CheckEveryType, AWrongOptionFails) {
  Workload w = solved(GetParam());
  w.options.causal = false;
  const cli::CheckReport report = cli::check(w, Mode::kBoth);
  EXPECT_FALSE(all_pass(report.forward));
  EXPECT_FALSE(all_pass(report.backward));
}

TEST_P(CheckEveryType, NonFiniteInputsAreData) {
  Workload w = solved(GetParam());
  core::store(w.v.view().data, w.v.dtype(), 5, kInfinity);
  core::store(w.q.view().data, w.q.dtype(), 100, kNan);
  w.forward("reference");
  EXPECT_TRUE(all_pass(cli::check(w, Mode::kForward).forward));
}

/// Returns a float32 problem and its correct results. The scores have standard deviation `deviation`.
Workload solved_with_scores(double deviation, std::int64_t rows) {
  Workload w;
  const Shape shape = {1, 2, rows, 16};
  w.options.scale = deviation / std::sqrt(16.0);
  w.q = random_tensor(DType::kF32, shape, io::NormalStream::kQ);
  w.k = random_tensor(DType::kF32, shape, io::NormalStream::kK);
  w.v = random_tensor(DType::kF32, shape, io::NormalStream::kV);
  w.dout = random_tensor(DType::kF32, shape, io::NormalStream::kDOut);
  w.allocate_forward();
  w.allocate_backward();
  w.forward("cpu");
  w.backward("cpu");
  return w;
}

void scale_by(const Tensor& t, double factor) {
  for (std::int64_t i = 0; i < t.numel(); ++i) core::store(t.data, t.dtype, i, factor * core::load(t.data, t.dtype, i));
}

/// The scores are so large that the rounding of the products is a hundred times that of the results. Whether the tested
/// or the standard implementation has the larger error is then a matter of chance.
TEST(CheckOfLargeScores, RightResultsPass) {
  for (const double deviation : {50.0, 300.0, 1000.0}) {
    for (const std::int64_t rows : {40, 41, 43, 48, 64, 77, 130}) {
      const cli::CheckReport report = cli::check(solved_with_scores(deviation, rows), Mode::kBoth);
      EXPECT_TRUE(all_pass(report.forward)) << deviation << ", " << rows << " rows";
      EXPECT_TRUE(all_pass(report.backward)) << deviation << ", " << rows << " rows";
    }
  }
}

TEST(CheckOfLargeScores, OnePercentOffFails) {
  for (const double deviation : {50.0, 300.0, 3e3, 1e5}) {
    for (const auto tensor : {&Workload::o, &Workload::dv}) {
      Workload w = solved_with_scores(deviation, 130);
      scale_by((w.*tensor).view(), 0.99);
      const cli::CheckReport report = cli::check(w, Mode::kBoth);
      EXPECT_FALSE(all_pass(report.forward) && all_pass(report.backward)) << deviation;
    }
  }
  for (const double deviation : {50.0, 300.0}) {
    for (const auto tensor : {&Workload::dq, &Workload::dk}) {
      Workload w = solved_with_scores(deviation, 130);
      scale_by((w.*tensor).view(), 0.99);
      EXPECT_FALSE(all_pass(cli::check(w, Mode::kBoth).backward)) << deviation;
    }
  }
}

/// The scores of one query row are a million times larger than those of the other rows. The large rounding error of
/// this row must not excuse errors in other rows.
TEST(CheckOfLargeScores, OneRowOfThemExcusesNoOther) {
  Workload w = solved_with_scores(1, 160);
  const Tensor q = w.q.view();
  for (std::int64_t i = 5 * 16; i < 6 * 16; ++i) static_cast<float*>(q.data)[i] *= 1e6F;
  w.forward("cpu");
  w.backward("cpu");
  const cli::CheckReport report = cli::check(w, Mode::kBoth);
  EXPECT_TRUE(all_pass(report.forward) && all_pass(report.backward));
  for (const auto tensor : {&Workload::o, &Workload::dv}) {  // sets the values of head 1 to zero
    io::HostTensor kept = (w.*tensor).converted(DType::kF32);
    const Tensor t = (w.*tensor).view();
    std::fill_n(static_cast<float*>(t.data) + t.numel() / 2, t.numel() / 2, 0.0F);
    const cli::CheckReport wrong = cli::check(w, Mode::kBoth);
    EXPECT_FALSE(all_pass(wrong.forward) && all_pass(wrong.backward));
    std::copy_n(static_cast<const float*>(kept.view().data), t.numel(), static_cast<float*>(t.data));
  }
}

/// Returns a problem in which both heads have the same sink, and its correct results.
Workload solved_with_sinks(DType dtype, double sink) {
  Workload w;
  const Shape shape = {1, 2, 60, 16};
  w.q = random_tensor(dtype, shape, io::NormalStream::kQ);
  w.k = random_tensor(dtype, shape, io::NormalStream::kK);
  w.v = random_tensor(dtype, shape, io::NormalStream::kV);
  w.dout = random_tensor(dtype, shape, io::NormalStream::kDOut);
  io::HostTensor sinks(DType::kF32, {1, 2, 1, 1});
  std::fill_n(static_cast<float*>(sinks.view().data), 2, static_cast<float>(sink));
  w.score_tensors[core::tensor_index(ScoreMod::kSinks)] = std::move(sinks);
  w.allocate_forward();
  w.allocate_backward();
  w.forward("cpu");
  w.backward("cpu");
  return w;
}

/// If a sink gets nearly all the probability of a row, o and its gradient are as small as their rounding errors.
TEST(CheckOfSinks, RightResultsPass) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const double sink : {-30.0, 0.0, 20.0, 100.0, 200.0}) {
      const cli::CheckReport report = cli::check(solved_with_sinks(dtype, sink), Mode::kBoth);
      EXPECT_TRUE(all_pass(report.forward)) << dtype_name(dtype) << " " << sink;
      EXPECT_TRUE(all_pass(report.backward)) << dtype_name(dtype) << " " << sink;
    }
  }
}

TEST(CheckOfSinks, WrongGradientsFail) {
  for (const double sink : {0.0, 10.0, 20.0}) {
    Workload w = solved_with_sinks(DType::kF32, sink);
    scale_by(w.score_gradients[core::tensor_index(ScoreMod::kSinks)]->view(), 0.99);
    EXPECT_FALSE(all_pass(cli::check(w, Mode::kBoth).backward)) << sink;
  }
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    Workload w = solved_with_sinks(dtype, 0);
    scale_by(w.score_gradients[core::tensor_index(ScoreMod::kSinks)]->view(), 0.5);
    EXPECT_FALSE(all_pass(cli::check(w, Mode::kBoth).backward)) << dtype_name(dtype);
  }
}

// If a row sees only one key, p is 1, so the gradients of q and k are exactly 0. The computed values are the rounding
// errors of a difference of two equal sums.
TEST_P(CheckEveryType, OneKeyARowPasses) {
  for (const char* compute : {"cpu", "reference"}) {
    if (GetParam() == DType::kF64 && std::string_view(compute) == "cpu") continue;
    Workload w;
    w.q = random_tensor(GetParam(), {1, 4, 128, 64}, io::NormalStream::kQ);
    w.k = random_tensor(GetParam(), {1, 2, 1, 64}, io::NormalStream::kK);
    w.v = random_tensor(GetParam(), {1, 2, 1, 80}, io::NormalStream::kV);
    w.dout = random_tensor(GetParam(), {1, 4, 128, 80}, io::NormalStream::kDOut);
    w.score_tensors[core::tensor_index(ScoreMod::kBias)] =
        random_tensor(GetParam(), {1, 1, 128, 1}, io::NormalStream::kQ);
    w.allocate_forward();
    w.allocate_backward();
    w.forward(compute);
    w.backward(compute);
    for (const cli::TensorError& tensor : cli::check(w, Mode::kBoth).backward) {
      EXPECT_TRUE(tensor.passed) << compute << ' ' << tensor.name << ": " << tensor.max_abs << " > " << tensor.tolerance
                                 << " or " << tensor.mse << " > " << tensor.mse_tolerance;
    }
    // A gradient that is clearly not 0 must still fail.
    core::store(w.dq.view().data, w.dq.dtype(), 77, 0.05);
    EXPECT_FALSE(all_pass(cli::check(w, Mode::kBoth).backward)) << compute;
  }
}

Workload random_problem(DType dtype, const Shape& q, std::int64_t keys, std::int64_t heads_kv, bool causal) {
  Workload w;
  w.options.causal = causal;
  w.q = random_tensor(dtype, q, io::NormalStream::kQ);
  w.k = random_tensor(dtype, {q[0], heads_kv, keys, q[3]}, io::NormalStream::kK);
  w.v = random_tensor(dtype, {q[0], heads_kv, keys, q[3]}, io::NormalStream::kV);
  w.dout = random_tensor(dtype, q, io::NormalStream::kDOut);
  w.allocate_forward();
  w.allocate_backward();
  w.forward("auto");
  w.backward("auto");
  return w;
}

// In small tensors, the largest error of the standard implementation may be small by chance.
TEST_P(CheckEveryType, FewEntriesPass) {
  for (const std::int64_t rows : {1, 2, 3, 5}) {
    for (const std::int64_t keys : {1, 2, 3, 16}) {
      for (const std::int64_t head_dim : {1, 8, 32}) {
        for (const bool causal : {false, true}) {
          const Workload w = random_problem(GetParam(), {2, 4, rows, head_dim}, keys, 4, causal);
          const cli::CheckReport report = cli::check(w, Mode::kBoth);
          EXPECT_TRUE(all_pass(report.forward) && all_pass(report.backward))
              << rows << " rows, " << keys << " keys, head_dim " << head_dim << (causal ? " causal" : "");
        }
      }
    }
  }
}

class PlantedFault : public testing::TestWithParam<std::tuple<DType, bool>> {
 protected:
  void SetUp() override {
    const auto [dtype, causal] = GetParam();
    w = random_problem(dtype, {1, 4, 160, 64}, 160, 2, causal);
    const cli::CheckReport report = cli::check(w, Mode::kBoth);
    ASSERT_TRUE(all_pass(report.forward) && all_pass(report.backward));
  }

  /// Applies `plant` to the values of one tensor after the other. Expects that the check fails for the changed tensor
  /// and for no other.
  void finds(const char* fault, const std::function<void(std::vector<double>& values, const Shape& shape)>& plant) {
    for (io::HostTensor Workload::*member : {&Workload::o, &Workload::dq, &Workload::dk, &Workload::dv}) {
      const Tensor& t = (w.*member).view();
      std::vector<double> values(static_cast<std::size_t>(t.numel()));
      for (std::size_t i = 0; i < values.size(); ++i)
        values[i] = core::load(t.data, t.dtype, static_cast<std::int64_t>(i));
      std::vector<double> faulty = values;
      plant(faulty, t.shape);
      const auto put = [&](const std::vector<double>& from) {
        for (std::size_t i = 0; i < from.size(); ++i)
          core::store(t.data, t.dtype, static_cast<std::int64_t>(i), from[i]);
      };
      put(faulty);
      const cli::CheckReport report = cli::check(w, Mode::kBoth);
      const std::vector<const cli::TensorError*> all = {&report.forward[0], &report.backward[0], &report.backward[1],
                                                        &report.backward[2]};
      const std::size_t which = member == &Workload::o    ? 0
                                : member == &Workload::dq ? 1
                                : member == &Workload::dk ? 2
                                                          : 3;
      EXPECT_FALSE(all[which]->passed) << fault << " in " << all[which]->name << ": error " << all[which]->max_abs
                                       << " of " << all[which]->tolerance << ", MSE " << all[which]->mse << " of "
                                       << all[which]->mse_tolerance;
      put(values);
    }
  }

  Workload w;
};
INSTANTIATE_TEST_SUITE_P(Types, PlantedFault,
                         testing::Combine(testing::Values(DType::kF32, DType::kF16, DType::kBF16), testing::Bool()),
                         [](const auto& parameters) {
                           return std::string(dtype_name(std::get<0>(parameters.param))) +
                                  (std::get<1>(parameters.param) ? "_causal" : "_full");
                         });

TEST_P(PlantedFault, AScaleThatIsOnePercentOffFails) {
  finds("1 %", [](std::vector<double>& values, const Shape&) {
    for (double& x : values) x *= 1.01;
  });
}

TEST_P(PlantedFault, SwappedHeadsFail) {
  finds("two heads swapped", [](std::vector<double>& values, const Shape& shape) {
    const std::ptrdiff_t head = shape[2] * shape[3];
    std::swap_ranges(values.begin(), values.begin() + head, values.begin() + head);
  });
}

TEST_P(PlantedFault, OneRowThatIsAnothersFails) {
  for (const std::int64_t row : {0, 64, 157, 158}) {
    finds(("row " + std::to_string(row) + " is the next one").c_str(),
          [row](std::vector<double>& values, const Shape& shape) {
            // This row belongs to the second head.
            const auto from = values.begin() + (shape[2] + row) * shape[3];
            std::copy_n(from + shape[3], shape[3], from);
          });
  }
}

}  // namespace
}  // namespace attend::test
