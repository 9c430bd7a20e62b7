// What sm80_backward's kernels are compiled for, and which tiles they take for which facts.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cuda/launch/facts.hpp"
#include "kernels/sm80/sm80_backward_shape.cuh"

namespace attend::cuda {

struct Sm80BackwardVariant : Facts {
  std::int32_t copy_bytes = 16;  ///< all addresses, strides and row lengths are multiples of it: 16, 4 or 2
  std::int32_t has_dbias = 0;
  ElementType dbias = ElementType::kF32;
  std::int32_t dbias_over_rows = 0;  ///< it is a sum over the rows
  Sm80BackwardTile keys = {};
  Sm80BackwardTile queries = {};
  Sm80BackwardTile bias = {};

  /// With a dbias of that type. @param over_rows  it is a sum over the rows
  void set_dbias(ElementType type, bool over_rows);
  [[nodiscard]] int widest() const { return std::max(head_dim, head_dim_v); }
  /// dk and dv in one kernel: their sums fit into registers side by side, or warps of two roles have one each.
  [[nodiscard]] bool keys_and_values() const { return widest() <= 128 || keys.roles != kSm80General; }
};

/// The tiles for the facts: in one pass if dq may be added up in no fixed order, otherwise in two.
/// @param has_dbias  set_dbias() follows
[[nodiscard]] Sm80BackwardVariant sm80_backward_variant(const Facts& facts, int copy_bytes, int max_smem,
                                                        bool is_deterministic, bool has_dbias = false);

}  // namespace attend::cuda
