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

/// Where the elements of a captured tensor lie.
enum class CaptureStrides : std::uint8_t { kDense, kSpread, kTransposed, kNegative };

/// A tensor that a function reads, in memory that is NaN (or -1) elsewhere.
class CaptureBuffer {
 public:
  /// values: dense, as many as the shape has elements.
  CaptureBuffer(std::string name, DType dtype, std::vector<std::int64_t> shape, const std::vector<double>& values,
                CaptureStrides strides = CaptureStrides::kDense);

  [[nodiscard]] ScoreCapture capture(Device device = {}) const;
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] DType dtype() const { return dtype_; }
  [[nodiscard]] const std::vector<std::int64_t>& shape() const { return shape_; }
  [[nodiscard]] std::int64_t numel() const { return numel_; }
  /// As its dtype holds them, dense.
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

/// n numbers from N(0, deviation^2).
[[nodiscard]] std::vector<double> normal_values(std::int64_t n, std::uint64_t seed, double deviation = 1);

struct ScoreCase {
  AttentionCase attention;
  std::string text;
  std::vector<CaptureBuffer> captures = {};
};

/// Its function, which reads the captures' own memory.
[[nodiscard]] ScoreFunction function_of(const ScoreCase& c, Device device = {});

/// What comes out: tensors in row-major order, gradients of captures of floats by their names.
struct ScoreResults {
  std::vector<double> o, lse;
  std::vector<double> dq = {}, dk = {}, dv = {};
  std::vector<double> dbias = {}, dsinks = {};
  std::map<std::string, std::vector<double>> captures = {};
  /// Of an oracle, of the element where it is largest: the square root of a sum over rows, of the squares of the sum of
  /// the magnitudes of a row's terms. Where terms cancel, a gradient may be much smaller than its error's scale.
  std::map<std::string, double> magnitudes = {};
};

/// Runs both passes, or the forward of a backend that has no backward. All outputs are poisoned first; reports to
/// GoogleTest what is written beside them.
[[nodiscard]] ScoreResults run_score(const ScoreCase& c, const Inputs& in, std::string_view compute,
                                     bool with_capture_gradients = true);

/// Largest |a - b|, and NaN where one of them is NaN or infinite and the other is not the same.
[[nodiscard]] double largest_difference(const std::vector<double>& a, const std::vector<double>& b);

/// Expects each tensor of `got` within `tolerance` times the largest magnitude of the truth's, or times `least` if that
/// is larger; gradients within gradient_tolerance. Returns a line with errors and budgets.
std::string expect_close(const ScoreResults& got, const ScoreResults& truth, double tolerance,
                         double gradient_tolerance);

}  // namespace attend::test
