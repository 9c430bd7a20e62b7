// The caller's mask function. src/cuda/masks/mask_text.hpp replaces attention/custom_score.cuh by it, and its code uses
// the bounds.
//
//   MaskValueCode    evaluate(point, MaskCode::Tensors, bool&): is the pair seen? (src/expr/print.hpp)
//   MaskBoundsCode   evaluate(BoundsPoint, CaptureBounds, Bools&): are all pairs seen? (src/expr/print_bounds.hpp)
//   MaskCode         number(capture, data, place): an element of a captured tensor
#pragma once

#include "../attention/custom_score.cuh"
#include "mask_bounds.cuh"
