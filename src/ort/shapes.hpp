// What ONNX Runtime learns of a node's output before it runs.
#pragma once

#include "ort/api.hpp"

namespace attend::ort {

/// ONNX Runtime hands no table over when it asks for shapes: the one that operators were registered with.
void remember(Table table) noexcept;

/// CustomOp::infer_shapes: the shape of Y, from those of Q and V. Where they do not tell it, nothing is said.
Status* infer_y(const CustomOp* op, InferContext* context);

}  // namespace attend::ort
