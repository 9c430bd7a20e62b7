// A mask function in the form for GPUs: source text and captured tensors.
#pragma once

#include <string>
#include <vector>

#include "attend/tensor.hpp"

namespace attend::core {

/// A tensor that the function reads, on any device. Subscript n is dimension n; further dimensions have extent 1. Any
/// strides are allowed, including the last one.
struct MaskCapture {
  Tensor tensor;
  std::size_t rank = 0;  ///< number of subscripts
  /// true if bounds of runs of its elements are useful: only the last subscript varies within a tile
  bool has_bounds = false;
  std::string name = {};  ///< the caller's name of the capture
};

struct MaskProgram {
  /// Two structs: MaskValueCode computes the value (expr::print_struct), MaskBoundsCode bounds of the value
  /// (expr::print_bounds_struct). Contains nothing of the caller's text.
  std::string source;
  std::vector<MaskCapture> captures = {};  ///< at most kMostCaptured
};

}  // namespace attend::core
