// The caller's mask function. src/cuda/masks/mask_text.hpp replaces attention/custom_score.cuh by generated text, which
// uses the bounds of mask_bounds.cuh and defines these classes:
//
// - MaskValueCode::evaluate(point, MaskCode::Tensors, bool&) computes whether a pair is seen (src/expr/print.hpp).
// - MaskBoundsCode::evaluate(BoundsPoint, CaptureBounds, Bools&) computes whether all pairs are seen, and whether any
//   pair is seen (src/expr/print_bounds.hpp).
// - MaskCode::number(capture, data, place) returns an element of a captured tensor.
#pragma once

#include "../attention/custom_score.cuh"
#include "mask_bounds.cuh"
