// Converts the structs of the C interface to those of the C++ interface.
#pragma once

#include <optional>

#include "attend/attention.hpp"
#include "c/boundary.hpp"

namespace attend::c {

/// @param name  of the argument, for error messages
[[nodiscard]] Tensor tensor_of(const char* name, const attend_tensor* given);

/// Returns nothing for null.
[[nodiscard]] std::optional<Tensor> optional_tensor_of(const char* name, const attend_tensor* given);

/// Returns an input, or nothing for null.
[[nodiscard]] std::optional<ConstTensor> optional_input_of(const char* name, const attend_tensor* given);

/// Returns the defaults for null. The result points to the same memory as `given`.
[[nodiscard]] Params params_of(const attend_params* given);

[[nodiscard]] ForwardCall forward_call_of(const attend_forward_call* given);
[[nodiscard]] BackwardCall backward_call_of(const attend_backward_call* given);

/// Returns "auto" for null.
[[nodiscard]] inline std::string_view compute_of(const char* given) {
  return given == nullptr ? "auto" : given;
}

}  // namespace attend::c
