// Describes attention with a score function as data: a problem, a function text, and the tensors that the function
// reads.
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

/// Memory layout of a captured tensor.
enum class CaptureStrides : std::uint8_t { kDense, kSpread, kTransposed, kNegative };

/// A tensor that a score function reads. The unused memory between its elements is NaN (or -1 in integer tensors).
class CaptureBuffer {
 public:
  /// @param values one value per element of the shape, in row-major order
  CaptureBuffer(std::string name, DType dtype, std::vector<std::int64_t> shape, const std::vector<double>& values,
                CaptureStrides strides = CaptureStrides::kDense);

  [[nodiscard]] ScoreCapture capture(Device device = {}) const;
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] DType dtype() const { return dtype_; }
  [[nodiscard]] const std::vector<std::int64_t>& shape() const { return shape_; }
  [[nodiscard]] std::int64_t numel() const { return numel_; }
  /// Returns the values after rounding to the dtype, in row-major order.
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

/// Returns n random numbers from N(0, deviation^2).
[[nodiscard]] std::vector<double> normal_values(std::int64_t n, std::uint64_t seed, double deviation = 1);

struct ScoreCase {
  AttentionCase attention;
  std::string text;
  std::vector<CaptureBuffer> captures = {};
};

/// Returns the score function of the case. The function reads the memory of the case's captures directly.
[[nodiscard]] ScoreFunction function_of(const ScoreCase& c, Device device = {});

/// Results of a case. Tensors are in row-major order. `captures` holds the gradients of float captures by name.
struct ScoreResults {
  std::vector<double> o, lse;
  std::vector<double> dq = {}, dk = {}, dv = {};
  std::vector<double> dbias = {}, dsinks = {};
  std::map<std::string, std::vector<double>> captures = {};
  /// Scale of the error of each capture's gradient, set by an oracle. For each element, it is sqrt(sum over rows of
  /// s^2), where s is the sum of the magnitudes of the terms in one row. The map holds the largest value of all
  /// elements. If terms cancel, a gradient may be much smaller than this scale.
  std::map<std::string, double> magnitudes = {};
};

/// Runs forward and backward, or only forward if the backend has no backward. All outputs start as NaN. Writes between
/// the elements of an output are reported to GoogleTest.
[[nodiscard]] ScoreResults run_score(const ScoreCase& c, const Inputs& in, std::string_view compute,
                                     bool with_capture_gradients = true);

/// Returns the largest |a - b|. Returns NaN if a value is NaN or infinite and the other value differs.
[[nodiscard]] double largest_difference(const std::vector<double>& a, const std::vector<double>& b);

/// Expects that each tensor of `got` is close to the truth. The allowed error is `tolerance` (for gradients,
/// gradient_tolerance) times the largest magnitude in the truth. A magnitude below 1e-3 is replaced by 1e-3. Returns
/// one line with errors and budgets.
std::string expect_close(const ScoreResults& got, const ScoreResults& truth, double tolerance,
                         double gradient_tolerance);

}  // namespace attend::test
