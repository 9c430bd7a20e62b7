// Functions of the ONNX Runtime operators for other parts of the library.
#pragma once

namespace attend::ort {

/// Returns true while this thread runs a node. ONNX Runtime would report an interrupt to its caller as an error of the
/// model.
[[nodiscard]] bool is_running();

}  // namespace attend::ort
