// Shape inference: reports the shape of a node's output to ONNX Runtime before it runs.
#pragma once

#include "ort/api.hpp"

namespace attend::ort {

/// Stores the table with which operators were registered, because ONNX Runtime passes no table for shape inference.
void remember(Table table) noexcept;

/// CustomOp::infer_shapes: reports the shape of Y, computed from those of Q and V. Reports nothing if they are unknown.
Status* infer_y(const CustomOp* op, InferContext* context);

}  // namespace attend::ort
