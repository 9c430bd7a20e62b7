// Shape inference: reports the shape of a node's output to ONNX Runtime before the node runs.
#pragma once

#include "ort/api.hpp"

namespace attend::ort {

/// Stores the table of functions for later use by infer_shapes(), because ONNX Runtime passes no table when it infers
/// shapes.
void remember(Table table) noexcept;

/// Implements CustomOp::infer_shapes. Reports the shape of Y, computed from the shapes of Q and V. Reports nothing if
/// these are unknown.
Status* infer_y(const CustomOp* op, InferContext* context);

}  // namespace attend::ort
