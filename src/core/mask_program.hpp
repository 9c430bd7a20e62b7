// A mask function as GPUs take it: source text and captured tensors.
#pragma once

#include <string>
#include <vector>

#include "attend/tensor.hpp"

namespace attend::core {

/// A tensor that it reads, on any device. Subscript n is dimension n: further dimensions have extent 1. Strides are
/// any, the last one too.
struct MaskCapture {
  Tensor tensor;
  std::size_t rank = 0;     ///< how many subscripts it has
  bool has_bounds = false;  ///< are bounds of runs of its elements any help? Only the last subscript differs in a tile
  std::string name = {};    ///< what the caller calls it
};

struct MaskProgram {
  /// Two structs: MaskValueCode, the value, as expr::print_struct prints it; MaskBoundsCode, bounds of it, as
  /// expr::print_bounds_struct does. Nothing of the caller's text is in it.
  std::string source;
  std::vector<MaskCapture> captures = {};  ///< kMostCaptured at most
};

}  // namespace attend::core
