// What others ask of the operators for ONNX Runtime.
#pragma once

namespace attend::ort {

/// True while this thread runs a node. ONNX Runtime would tell its caller of an interrupt as of an error of the model.
[[nodiscard]] bool is_running();

}  // namespace attend::ort
