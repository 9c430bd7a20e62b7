// Gradients of the tensors that a score function reads: sums in float64 of what each score's gradient gives to the
// elements that it has loaded.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "core/problem.hpp"
#include "cpu/function_rows.hpp"
#include "expr/score_program.hpp"

namespace attend::cpu {

/// An array of sums: those of each capture whose gradient is asked for, dense, one capture behind the other.
class CaptureLayout {
 public:
  /// The problem has a function with a program.
  explicit CaptureLayout(const core::Problem& p);

  /// Loads of captures whose gradient is asked for.
  [[nodiscard]] const std::vector<expr::CaptureLoad>& loads() const { return loads_; }
  [[nodiscard]] std::int64_t size() const { return size_; }
  /// Where the sum of an element is that load n reads; subscripts are taken within the tensor.
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
  std::vector<Of> gradients_;    // of p.captured_gradients
  std::vector<std::size_t> of_;  // of each load, the place of its gradient
  std::int64_t size_ = 0;
};

/// Adds rows of scores to sums. For one thread.
class CaptureSums {
 public:
  static constexpr int kMostKeys = 128;

  /// All must outlive it. sums: layout.size() of them.
  CaptureSums(const core::Problem& p, const CaptureLayout& layout, double* sums);
  CaptureSums(const CaptureSums&) = delete;
  CaptureSums& operator=(const CaptureSums&) = delete;

  /// Scores before the function, and gradients of scores behind it; at most kMostKeys. Where a gradient is 0, nothing
  /// is added.
  void add(const FunctionRow& row, const float* scores, const float* ds, int count);

 private:
  const CaptureLayout& layout_;
  double* sums_;
  std::vector<CapturedView> captures_;
  expr::RowProgram program_;
  RowFunction function_;
};

}  // namespace attend::cpu
