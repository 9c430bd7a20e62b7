// The comparison behind --check: planted faults have to fail, and NaN never passes by accident.
#include "check.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "core/elements.hpp"
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
      // Zero may happen to be near the right value of a half-precision gradient; everything else never is.
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

}  // namespace
}  // namespace attend::test
