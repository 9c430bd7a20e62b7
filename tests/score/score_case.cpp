#include "score/score_case.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>
#include <random>

#include "core/elements.hpp"

namespace attend::test {
namespace {

constexpr std::int64_t kGap = 3;  // unused elements between neighbours in layouts that are not dense

}  // namespace

CaptureBuffer::CaptureBuffer(std::string name, DType dtype, std::vector<std::int64_t> shape,
                             const std::vector<double>& values, CaptureStrides strides)
    : name_(std::move(name)), dtype_(dtype), shape_(std::move(shape)), stride_(shape_.size()) {
  const std::size_t rank = shape_.size();
  std::int64_t next = strides == CaptureStrides::kSpread || strides == CaptureStrides::kNegative ? kGap : 1;
  for (std::size_t n = 0; n < rank; ++n) {
    const std::size_t d = strides == CaptureStrides::kTransposed ? n : rank - 1 - n;
    stride_[d] = next;
    next *= shape_[d];
    numel_ *= shape_[d];
    if (strides != CaptureStrides::kNegative) continue;
    first_ += (shape_[d] - 1) * stride_[d];
    stride_[d] = -stride_[d];
  }
  memory_ = TensorBuffer(dtype, {1, 1, 1, next});
  set(values);
}

std::int64_t CaptureBuffer::offset(std::int64_t element) const {
  std::int64_t at = first_;
  for (std::size_t d = shape_.size(); d-- > 0; element /= shape_[d]) at += element % shape_[d] * stride_[d];
  return at;
}

void CaptureBuffer::set(const std::vector<double>& values) const {
  ASSERT_EQ(static_cast<std::int64_t>(values.size()), numel_);
  for (std::int64_t n = 0; n < numel_; ++n) memory_.set(0, 0, 0, offset(n), values[static_cast<std::size_t>(n)]);
}

std::vector<double> CaptureBuffer::values() const {
  std::vector<double> all;
  for (std::int64_t n = 0; n < numel_; ++n) all.push_back(memory_.at(0, 0, 0, offset(n)));
  return all;
}

ScoreCapture CaptureBuffer::capture(Device device) const {
  const auto* data = static_cast<const char*>(memory_.view().data) + first_ * dtype_bytes(dtype_);
  return {name_, {.data = data, .dtype = dtype_, .shape = shape_, .stride = stride_, .device = device}};
}

std::vector<double> normal_values(std::int64_t n, std::uint64_t seed, double deviation) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<double> normal(0, deviation);
  std::vector<double> values;
  for (std::int64_t i = 0; i < n; ++i) values.push_back(normal(engine));
  return values;
}

ScoreFunction function_of(const ScoreCase& c, Device device) {
  std::vector<ScoreCapture> captures;
  for (const CaptureBuffer& b : c.captures) captures.push_back(b.capture(device));
  return ScoreFunction(c.text, captures);
}

ScoreResults run_score(const ScoreCase& c, const Inputs& in, std::string_view compute, bool with_capture_gradients) {
  const Outputs out = make_outputs(in);
  ForwardCall forward_call = forward_of(in, out, compute);
  const Device device = forward_call.q.device;
  const ScoreFunction function = function_of(c, device);
  forward_call.params.score = &function;
  forward(forward_call);
  std::vector<CaptureBuffer> gradients;
  BackwardCall call = backward_of(in, out, compute);
  call.params.score = &function;
  const DType gradient_dtype = in.options.dtype == DType::kF64 ? DType::kF64 : DType::kF32;
  for (const CaptureBuffer& b : c.captures) {
    const bool is_float = b.dtype() != DType::kI32 && b.dtype() != DType::kI64 && b.dtype() != DType::kBool;
    if (!is_float || !with_capture_gradients) continue;
    const std::vector<double> poison(static_cast<std::size_t>(b.numel()), NAN);
    const CaptureStrides strides = device.type == DeviceType::kCUDA ? CaptureStrides::kDense : CaptureStrides::kSpread;
    gradients.emplace_back(b.name(), gradient_dtype, b.shape(), poison, strides);
    const ConstStridedTensor view = gradients.back().capture(device).tensor;
    call.captures.push_back(
        {b.name(), {const_cast<void*>(view.data), view.dtype, view.shape, view.stride, view.device}});
  }
  if (has_backward(compute)) backward(call);
  wait_for(compute);
  for (const TensorBuffer* t : {&out.o, &out.lse, &out.dq, &out.dk, &out.dv}) EXPECT_TRUE(t->gaps_intact());
  ScoreResults results = {.o = out.o.values(), .lse = out.lse.values()};
  if (!has_backward(compute)) return results;
  results.dq = out.dq.values(), results.dk = out.dk.values(), results.dv = out.dv.values();
  if (out.dbias) results.dbias = out.dbias->values();
  if (out.dsinks) results.dsinks = out.dsinks->values();
  for (const CaptureBuffer& g : gradients) results.captures[g.name()] = g.values();
  return results;
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return NAN;
  double largest = 0;
  for (std::size_t n = 0; n < a.size(); ++n) {
    if (std::isnan(a[n]) && std::isnan(b[n])) continue;
    if (a[n] == b[n]) continue;
    const double difference = std::abs(a[n] - b[n]);
    if (!std::isfinite(difference)) return NAN;
    largest = std::max(largest, difference);
  }
  return largest;
}

std::string expect_close(const ScoreResults& got, const ScoreResults& truth, double tolerance,
                         double gradient_tolerance) {
  std::string line;
  const auto expect = [&](const std::string& name, const std::vector<double>& a, const std::vector<double>& b,
                          // Smaller values are compared on this scale, because their last bits are noise.
                          double allowed, double magnitude = 1e-3) {
    for (const double x : b) magnitude = std::max(magnitude, std::isfinite(x) ? std::abs(x) : 0.0);
    const double error = largest_difference(a, b), budget = allowed * magnitude;
    EXPECT_TRUE(error <= budget) << name << ": error " << error << ", budget " << budget;
    char text[64];
    std::snprintf(text, sizeof text, " %s %.1e/%.1e", name.c_str(), error, budget);
    line += text;
  };
  expect("o", got.o, truth.o, tolerance);
  expect("lse", got.lse, truth.lse, std::min(tolerance, 4e-6));  // at most the rounding error of a float32 lse
  if (got.dq.empty()) return line;                               // the backend has no backward
  expect("dq", got.dq, truth.dq, gradient_tolerance);
  expect("dk", got.dk, truth.dk, gradient_tolerance);
  expect("dv", got.dv, truth.dv, gradient_tolerance);
  if (!truth.dbias.empty()) expect("dbias", got.dbias, truth.dbias, gradient_tolerance);
  if (!truth.dsinks.empty()) expect("dsinks", got.dsinks, truth.dsinks, gradient_tolerance);
  for (const auto& [name, values] : got.captures) {
    const auto found = truth.captures.find(name);
    EXPECT_TRUE(found != truth.captures.end()) << name;
    if (found != truth.captures.end()) {
      // Rounding o causes an error in delta, and all terms of a row contain this error.
      const auto of_terms = truth.magnitudes.find(name);
      const double of_rows = of_terms == truth.magnitudes.end() ? 0 : tolerance / 2 * of_terms->second;
      expect("d" + name, values, found->second, gradient_tolerance, 1e-3 + of_rows / gradient_tolerance);
    }
  }
  return line;
}

}  // namespace attend::test
