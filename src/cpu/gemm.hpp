// C = A B, C += A B or C = diag(r) C + A B for the small float matrices of an attention tile.
#pragma once

#include <cstdint>

namespace attend::cpu {

/// Matrix A (m x k). The product reads one element at a time and broadcasts it, so either memory order is efficient.
struct BroadcastOperand {
  const float* data;
  std::int64_t row_stride;  ///< floats from A(i, p) to A(i + 1, p)
  std::int64_t col_stride;  ///< floats from A(i, p) to A(i, p + 1)
};

/// Matrix B (k x n). n is a multiple of 16, and each row can be read in full vectors.
struct VectorOperand {
  const float* data;
  std::int64_t row_stride;
};

enum class GemmMode {
  kStore,                   ///< C = A B
  kAccumulate,              ///< C = C + A B
  kScaleAccumulate,         ///< C = diag(row_scale) C + A B
  kScaleColumnsAccumulate,  ///< C = C diag(column_scale) + A B; only amx_gemm() supports it
};

/// For each row of A, a range of columns of B, or a range of k. A product uses the ranges to skip the masked corner of
/// a tile. From row to row, begin and end must not decrease. If the ranges restrict columns, begin and end are
/// multiples of 16.
struct RowRanges {
  const std::int32_t* begin = nullptr;  ///< null: no restriction
  const std::int32_t* end = nullptr;
};

/// Prefetches rows into the second-level cache, a few lines at a time during the arithmetic. Fetching all lines at once
/// would fill the core's miss buffers and stall it.
class PrefetchRows {
 public:
  PrefetchRows() = default;
  PrefetchRows(const void* first, std::int64_t num_rows, std::int64_t row_bytes, std::int64_t stride_bytes,
               int num_steps)
      : row_(static_cast<const char*>(first)),
        rows_left_(num_rows),
        row_bytes_(row_bytes),
        stride_bytes_(stride_bytes),
        lines_per_step_((num_rows * ((row_bytes + kLineBytes - 1) / kLineBytes) + num_steps - 1) / num_steps) {}

  /// Prefetches the lines of one of num_steps steps.
  void step() {
    for (std::int64_t line = 0; line < lines_per_step_ && rows_left_ > 0; ++line) {
      __builtin_prefetch(row_ + byte_, /*write=*/0, /*locality=*/2);
      byte_ += kLineBytes;
      if (byte_ < row_bytes_) continue;
      byte_ = 0;
      row_ += stride_bytes_;
      --rows_left_;
    }
  }

 private:
  static constexpr std::int64_t kLineBytes = 64;
  const char* row_ = nullptr;
  std::int64_t rows_left_ = 0;
  std::int64_t row_bytes_ = 0;
  std::int64_t stride_bytes_ = 0;
  std::int64_t lines_per_step_ = 0;
  std::int64_t byte_ = 0;
};

struct GemmArgs {
  BroadcastOperand a;
  VectorOperand b;
  float* c;
  std::int64_t c_stride;
  std::int64_t m, n, k;
  GemmMode mode = GemmMode::kStore;
  const float* row_scale = nullptr;  ///< (m), used by kScaleAccumulate
  PrefetchRows* prefetch = nullptr;  ///< the product executes one prefetch step per block of 6 rows and 64 columns of C
  /// Columns of row i of C that the caller needs. Other columns may be written or left unchanged.
  RowRanges columns = {};
  RowRanges depth = {};  ///< range of p outside of which A(i, p) is zero
};

}  // namespace attend::cpu
