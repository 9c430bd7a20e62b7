// C = A B, C += A B or C = diag(r) C + A B for the small float matrices of an attention tile.
#pragma once

#include <cstdint>

namespace attend::cpu {

/// A (m x k) is read one element at a time and broadcast, so it may lie in memory either way round.
struct BroadcastOperand {
  const float* data;
  std::int64_t row_stride;  ///< floats from A(i, p) to A(i + 1, p)
  std::int64_t col_stride;  ///< floats from A(i, p) to A(i, p + 1)
};

/// B (k x n): rows of n floats, n a multiple of 16, readable in whole vectors.
struct VectorOperand {
  const float* data;
  std::int64_t row_stride;
};

enum class GemmMode {
  kStore,            ///< C = A B
  kAccumulate,       ///< C = C + A B
  kScaleAccumulate,  ///< C = diag(row_scale) C + A B
};

/// A range of columns or of k for each row of A, monotone in the row; lets a product skip the masked corner of a tile.
/// begin and end are multiples of 16 where they restrict columns.
struct RowRanges {
  const std::int32_t* begin = nullptr;  ///< null: no restriction
  const std::int32_t* end = nullptr;
};

struct GemmArgs {
  BroadcastOperand a;
  VectorOperand b;
  float* c;
  std::int64_t c_stride;
  std::int64_t m, n, k;
  GemmMode mode = GemmMode::kStore;
  const float* row_scale = nullptr;  ///< (m), with kScaleAccumulate
  RowRanges columns = {};            ///< row i of C is needed in these columns only; others may or may not be written
  RowRanges depth = {};              ///< A(i, p) is zero outside of this range of p
};

}  // namespace attend::cpu
