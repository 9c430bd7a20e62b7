// Bounds of the elements of a mask function's tensors, for ranges of subscripts. With these bounds, the library detects
// tiles that are empty, for example because of documents or padding.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cpu/captured.hpp"
#include "expr/bounds.hpp"
#include "mask/mask_function.hpp"

namespace attend::mask {

/// Bounds of the tensors on which `result` depends. The constructor reads the tensors once.
class CaptureBounds {
 public:
  CaptureBounds(const expr::Graph& graph, expr::Id result, std::span<const cpu::CapturedView> captures);

  /// Returns bounds in the form of expr::LoadBounds. They may include up to 63 additional elements at either end of the
  /// last dimension. For ranges of several rows, and for tensors of more than 2^20 blocks of 64 elements, they are the
  /// bounds of the entire tensor.
  [[nodiscard]] expr::Interval of(std::int32_t capture, std::span<const expr::Interval> subscripts) const;

 private:
  /// Bounds of a capture for blocks of its last dimension, for each row. Level n has the bounds of groups of 2^n
  /// blocks.
  struct Levels {
    std::vector<std::int64_t> extents;  // extents of all dimensions except the last one
    std::int64_t rows = 1;
    std::vector<std::vector<expr::Interval>> of_blocks;  // empty if the tensor is too large
    expr::Interval of_all;
  };
  static Levels levels_of(const expr::Capture& capture, const cpu::CapturedView& view);
  static expr::Interval in_row(const Levels& levels, std::int64_t row, std::int64_t first, std::int64_t last);

  std::vector<Levels> captures_;
};

}  // namespace attend::mask
