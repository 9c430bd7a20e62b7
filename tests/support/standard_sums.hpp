// The sums of the frozen standard and their error bounds, on dense float matrices.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "core/elements.hpp"
#include "core/problem.hpp"

namespace attend::test {

/// A dense float matrix.
struct Floats {
  Floats(std::int64_t rows_, std::int64_t cols_, float value = 0)
      : rows(rows_), cols(cols_), values(static_cast<std::size_t>(rows_ * cols_), value) {}
  explicit Floats(const core::Matrix& m) : Floats(m.rows, m.cols) {
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < cols; ++c) at(r, c) = static_cast<float>(core::load(m, r, c));
    }
  }
  float& at(std::int64_t r, std::int64_t c) { return values[static_cast<std::size_t>(r * cols + c)]; }
  [[nodiscard]] float at(std::int64_t r, std::int64_t c) const {
    return values[static_cast<std::size_t>(r * cols + c)];
  }
  [[nodiscard]] const float* row(std::int64_t r) const { return values.data() + r * cols; }
  float* row(std::int64_t r) { return values.data() + r * cols; }

  std::int64_t rows;
  std::int64_t cols;
  std::vector<float> values;
};

/// The product <a, b>, and the sum of the magnitudes of its terms.
struct Dot {
  float value = 0;
  float magnitude = 0;
  Dot(const float* a, const float* b, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) value += a[i] * b[i];
    for (std::int64_t i = 0; i < n; ++i) magnitude += std::abs(a[i] * b[i]);
  }
  Dot(float value_, float magnitude_) : value(value_), magnitude(magnitude_) {}
};

constexpr std::int64_t kSide = 32;

/// For kSide vectors b_s with interleaved columns, computes value[s] = <a, b_s> and magnitude[s] = sum_c |a_c b_sc|.
void dots(const float* a, const float* b, std::int64_t cols, float* value, float* magnitude);

/// For each of `n` elements, computes to += factor * x, walk += (step * x)^2 and bound += error * |x|.
void add_scaled(float* __restrict to, float* __restrict walk, float* __restrict bound, const float* __restrict x,
                std::int64_t n, float factor, float step, float error);

/// Products of one row with the rows of a matrix, computed for kSide rows at a time. Each product is summed in column
/// order, so it has the same bits as Dot(row, matrix row). Computing them in groups is faster.
class DotsOfRow {
 public:
  explicit DotsOfRow(const Floats& b)
      : cols_(b.cols), packed_(static_cast<std::size_t>((b.rows + kSide - 1) / kSide * kSide * b.cols)) {
    for (std::int64_t r = 0; r < b.rows; ++r) {
      for (std::int64_t c = 0; c < cols_; ++c) group(r / kSide)[c * kSide + r % kSide] = b.at(r, c);
    }
  }

  /// Sets the row that later calls of at() multiply.
  void begin(const float* a) {
    a_ = a;
    group_ = -1;
  }
  /// Returns the product <a, row j of the matrix>.
  [[nodiscard]] Dot at(std::int64_t j) {
    if (j / kSide != group_) {
      group_ = j / kSide;
      dots(a_, group(group_), cols_, value_, magnitude_);
    }
    return {value_[j % kSide], magnitude_[j % kSide]};
  }

 private:
  float* group(std::int64_t index) { return packed_.data() + index * kSide * cols_; }

  std::int64_t cols_;
  std::vector<float> packed_;  // shape (groups, columns, kSide rows)
  const float* a_ = nullptr;
  std::int64_t group_ = -1;  // group whose products are cached in value_ and magnitude_; -1 if none
  float value_[kSide] = {}, magnitude_[kSide] = {};
};

/// The result of one head with two estimates of its error. `walk` holds squared errors until place() takes the root.
struct Accumulator {
  Accumulator(std::int64_t rows, std::int64_t cols) : value(rows, cols), walk(rows, cols), bound(rows, cols) {}

  /// Computes row += factor * x. Let u be the unit roundoff of the dtype. The factor has a rounding error of u * step,
  /// and an f32 error of `error`.
  void add(std::int64_t row, float factor, float step, float error, const float* x) {
    add_scaled(value.row(row), walk.row(row), bound.row(row), x, value.cols, factor, step, error);
  }

  Floats value, walk, bound;
};

}  // namespace attend::test
