// Functions of the ONNX Runtime operators that other parts of the library call.
#pragma once

namespace attend::ort {

/// Returns true while this thread runs a node. Interrupts must not end such a run, because ONNX Runtime would report an
/// interrupt as an error of the model.
[[nodiscard]] bool is_running();

}  // namespace attend::ort
