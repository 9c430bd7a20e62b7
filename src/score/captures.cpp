#include "score/captures.hpp"

#include <fmt/format.h>

#include <cmath>
#include <string>

#include "core/custom_score.hpp"
#include "core/dtype_traits.hpp"
#include "core/problem_checks.hpp"

namespace attend::score {
namespace {

// ConstStridedTensor and StridedTensor are separate structs. If they were instances of one template, GCC 12 would crash
// on designated initializers of them.

static_assert(ScoreFunction::kMostCaptures == core::CustomScore::kMostCaptured);

expr::Type type_of(DType dtype) {
  return dtype == DType::kBool ? expr::Type::kBool : core::is_float(dtype) ? expr::Type::kFloat : expr::Type::kInt;
}

void check_view(std::string_view argument, const ScoreCapture& capture) {
  const ConstStridedTensor& t = capture.tensor;
  const auto refuse = [&](const std::string& message) {
    core::refuse("{}: capture '{}': {}", argument, capture.name, message);
  };
  const core::DTypeTraits traits = core::dtype_traits(t.dtype);
  if (!traits.is_float && !traits.is_integer && t.dtype != DType::kBool) {
    refuse(fmt::format("dtype {}, allowed f32, f16, bf16, f64, i32, i64, bool", dtype_name(t.dtype)));
  }
  if (t.shape.size() > expr::kMostSubscripts) {
    refuse(fmt::format("{} dimensions, allowed 0 to {}", t.shape.size(), expr::kMostSubscripts));
  }
  if (!t.stride.empty() && t.stride.size() != t.shape.size()) {
    refuse(fmt::format("{} strides, allowed one for each of {} dimensions", t.stride.size(), t.shape.size()));
  }
  if (t.data == nullptr) refuse("null data");
}

void check_reach(std::string_view argument, const ScoreCapture& capture, const Tensor& t) {
  constexpr double kMostBytes = 0x1p62;
  double bytes = 0;
  for (std::size_t d = 0; d < t.shape.size(); ++d) {
    bytes += std::abs(static_cast<double>(t.stride[d])) * static_cast<double>(t.shape[d] - 1);
  }
  if (bytes * static_cast<double>(dtype_bytes(t.dtype)) >= kMostBytes) {
    core::refuse("{}: capture '{}': strides that span more than 2^62 bytes", argument, capture.name);
  }
}

/// Returns a capture as a tensor with four dimensions. If the stride of a dense tensor exceeds 2^62, it becomes 2^62,
/// and check_reach() then refuses the tensor.
Tensor four_dimensions(const ConstStridedTensor& t) {
  constexpr std::int64_t kMost = std::int64_t{1} << 62;
  Tensor wide = {const_cast<void*>(t.data), t.dtype, t.device, {1, 1, 1, 1}, {0, 0, 0, 0}};
  std::int64_t dense = 1;
  for (std::size_t d = t.shape.size(); d-- > 0;) {
    wide.shape[d] = t.shape[d];
    if (t.shape[d] > 1) wide.stride[d] = t.stride.empty() ? dense : t.stride[d];
    dense = dense > kMost / t.shape[d] ? kMost : dense * t.shape[d];
  }
  return wide;
}

}  // namespace

void check_captures(std::string_view argument, const std::vector<ScoreCapture>& captures) {
  if (captures.size() > ScoreFunction::kMostCaptures) {
    core::refuse("{}: {} captures, allowed at most {}", argument, captures.size(), ScoreFunction::kMostCaptures);
  }
  for (const ScoreCapture& capture : captures) check_view(argument, capture);
}

std::vector<expr::Capture> names_and_shapes(const std::vector<ScoreCapture>& captures) {
  std::vector<expr::Capture> all;
  for (const ScoreCapture& c : captures) all.push_back({c.name, type_of(c.tensor.dtype), c.tensor.shape});
  return all;
}

std::vector<Tensor> in_four_dimensions(std::string_view argument, const std::vector<ScoreCapture>& captures) {
  std::vector<Tensor> all;
  for (const ScoreCapture& capture : captures) {
    all.push_back(four_dimensions(capture.tensor));
    check_reach(argument, capture, all.back());
  }
  return all;
}

bool is_same_program(const std::vector<expr::Capture>& a, const std::vector<ScoreCapture>& captures) {
  const std::vector<expr::Capture> b = names_and_shapes(captures);
  if (a.size() != b.size()) return false;
  for (std::size_t n = 0; n < a.size(); ++n) {
    if (a[n].name != b[n].name || a[n].type != b[n].type || a[n].shape != b[n].shape) return false;
  }
  return true;
}

}  // namespace attend::score
