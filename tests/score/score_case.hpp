// Attention with a score function as data: a problem, a text, and the tensors that it reads.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "attend/score_function.hpp"
#include "support/attention_case.hpp"

namespace attend::test {

/// Strides of a captured tensor.
enum class CaptureStrides : std::uint8_t { kDense, kSpread, kTransposed, kNegative };

/// A tensor that a function reads. The memory between its elements is NaN (or -1).
class CaptureBuffer {
 public:
  /// @param values one per element of the shape, row-major
  CaptureBuffer(std::string name, DType dtype, std::vector<std::int64_t> shape, const std::vector<double>& values,
                CaptureStrides strides = CaptureStrides::kDense);

  [[nodiscard]] ScoreCapture capture(Device device = {}) const;
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] DType dtype() const { return dtype_; }
  [[nodiscard]] const std::vector<std::int64_t>& shape() const { return shape_; }
  [[nodiscard]] std::int64_t numel() const { return numel_; }
  /// Returns the values as the dtype stores them, row-major.
  [[nodiscard]] std::vector<double> values() const;
  void set(const std::vector<double>& values) const;

 private:
  [[nodiscard]] std::int64_t offset(std::int64_t element) const;

  std::string name_;
  DType dtype_;
  std::vector<std::int64_t> shape_, stride_;
  std::int64_t numel_ = 1, first_ = 0;
  TensorBuffer memory_;
};

/// Returns n numbers from N(0, deviation^2).
[[nodiscard]] std::vector<double> normal_values(std::int64_t n, std::uint64_t seed, double deviation = 1);

struct ScoreCase {
  AttentionCase attention;
  std::string text;
  std::vector<CaptureBuffer> captures = {};
};

/// Returns the case's function, which reads the captures' memory directly.
[[nodiscard]] ScoreFunction function_of(const ScoreCase& c, Device device = {});

/// Results: tensors in row-major order, and gradients of float captures by name.
struct ScoreResults {
  std::vector<double> o, lse;
  std::vector<double> dq = {}, dk = {}, dv = {};
  std::vector<double> dbias = {}, dsinks = {};
  std::map<std::string, std::vector<double>> captures = {};
  /// Set by an oracle, for each capture: the largest value over its elements of sqrt(sum over rows of s^2). Here s is
  /// the sum of the magnitudes of a row's terms. If terms cancel, a gradient may be much smaller than the scale of its
  /// error.
  std::map<std::string, double> magnitudes = {};
};

/// Runs both passes, or only the forward if the backend has no backward. All outputs are poisoned first. Writes between
/// the elements are reported to GoogleTest.
[[nodiscard]] ScoreResults run_score(const ScoreCase& c, const Inputs& in, std::string_view compute,
                                     bool with_capture_gradients = true);

/// Returns the largest |a - b|, or NaN if one of them is NaN or infinite and the other differs.
[[nodiscard]] double largest_difference(const std::vector<double>& a, const std::vector<double>& b);

/// Expects each tensor of `got` within `tolerance` (gradients: gradient_tolerance) times the truth's largest magnitude,
/// which counts as at least 1e-3. Returns a line with errors and budgets.
std::string expect_close(const ScoreResults& got, const ScoreResults& truth, double tolerance,
                         double gradient_tolerance);

}  // namespace attend::test
