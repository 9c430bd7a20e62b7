// Sums the gradients of the tensors that a score function reads. Each score adds its contribution, in float64, to the
// elements that it loads.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "core/problem.hpp"
#include "cpu/function_rows.hpp"
#include "expr/score_program.hpp"

namespace attend::cpu {

/// Layout of an array of sums. It has one dense block for each capture (a tensor that the function reads) whose
/// gradient is requested.
class CaptureLayout {
 public:
  /// The problem must have a function with a program.
  explicit CaptureLayout(const core::Problem& p);

  /// Returns the function's loads from captures whose gradient is requested.
  [[nodiscard]] const std::vector<expr::CaptureLoad>& loads() const { return loads_; }
  [[nodiscard]] std::int64_t size() const { return size_; }
  /// Returns the index of the sum for the element that load n reads. Subscripts are clamped to the tensor's extents.
  [[nodiscard]] std::int64_t place(std::size_t n, std::span<const std::int64_t> subscripts) const;
  /// Writes all sums to the problem's gradients.
  void store(std::span<const double> sums) const;

 private:
  struct Of {
    std::int64_t first;
    Shape extent;
  };
  const core::Problem& p_;
  std::vector<expr::CaptureLoad> loads_;
  std::vector<Of> gradients_;    // one entry for each of p.captured_gradients
  std::vector<std::size_t> of_;  // for each load, the index of the gradient that it contributes to
  std::int64_t size_ = 0;
};

/// Adds rows of scores to an array of sums. Not thread-safe.
class CaptureSums {
 public:
  static constexpr int kMostKeys = 128;

  /// All arguments must outlive the object. `sums` has layout.size() values.
  CaptureSums(const core::Problem& p, const CaptureLayout& layout, double* sums);
  CaptureSums(const CaptureSums&) = delete;
  CaptureSums& operator=(const CaptureSums&) = delete;

  /// Adds the contributions of one query row with at most kMostKeys keys. `scores` are the scores before the function.
  /// `ds` are the gradients of the scores after the function. A score whose gradient is 0 adds nothing.
  void add(const FunctionRow& row, const float* scores, const float* ds, int count);

 private:
  const CaptureLayout& layout_;
  double* sums_;
  std::vector<CapturedView> captures_;
  expr::RowProgram program_;
  RowFunction function_;
};

}  // namespace attend::cpu
