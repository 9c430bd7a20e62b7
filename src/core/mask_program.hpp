// A mask function in the form that GPUs need: source text and captured tensors.
#pragma once

#include <string>
#include <vector>

#include "attend/tensor.hpp"

namespace attend::core {

/// A tensor that the function reads, on any device. Dimension n corresponds to subscript n; further dimensions have
/// extent 1. All strides are allowed, including any last stride.
struct MaskCapture {
  Tensor tensor;
  std::size_t rank = 0;  ///< number of subscripts that the function uses
  /// True if only the last subscript varies within a tile. The minimum and maximum of consecutive elements then help to
  /// classify tiles.
  bool has_bounds = false;
  std::string name = {};  ///< the caller's name of the capture
};

struct MaskProgram {
  /// Two structs. MaskValueCode computes the value (expr::print_struct). MaskBoundsCode computes bounds of the value in
  /// a tile (expr::print_bounds_struct). The library generates the text. It contains no text of the caller.
  std::string source;
  std::vector<MaskCapture> captures = {};  ///< at most kMostCaptured
};

}  // namespace attend::core
