// Bounds of the elements of a mask function's tensors, over ranges of subscripts: by them tiles are left out that
// documents or padding make empty.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cpu/captured.hpp"
#include "expr/bounds.hpp"
#include "mask/mask_function.hpp"

namespace attend::mask {

/// Reads the tensors that `result` asks for once, when it is made.
class CaptureBounds {
 public:
  CaptureBounds(const expr::Graph& graph, expr::Id result, std::span<const cpu::CapturedView> captures);

  /// As expr::LoadBounds wants them. Wider than need be by up to 63 elements of the last dimension at either end, where
  /// many rows of it are asked for at once, and of a tensor of more than 2^20 blocks of 64 elements of a row.
  [[nodiscard]] expr::Interval of(std::int32_t capture, std::span<const expr::Interval> subscripts) const;

 private:
  /// The last dimension of a capture in blocks, of each row: level n has the bounds of 2^n blocks.
  struct Levels {
    std::vector<std::int64_t> extents;  // of the other dimensions
    std::int64_t rows = 1;
    std::vector<std::vector<expr::Interval>> of_blocks;  // no level: too large a tensor
    expr::Interval of_all;
  };
  static Levels levels_of(const expr::Capture& capture, const cpu::CapturedView& view);
  static expr::Interval in_row(const Levels& levels, std::int64_t row, std::int64_t first, std::int64_t last);

  std::vector<Levels> captures_;
};

}  // namespace attend::mask
