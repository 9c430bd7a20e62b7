// Converts the structs of the C interface to those of the C++ interface.
#pragma once

#include <optional>

#include "attend/attention.hpp"
#include "c/boundary.hpp"

namespace attend::c {

/// @param name  name of the argument, for error messages
[[nodiscard]] Tensor tensor_of(const char* name, const attend_tensor* given);

/// Returns the tensor, or nothing if `given` is null.
[[nodiscard]] std::optional<Tensor> optional_tensor_of(const char* name, const attend_tensor* given);

/// Returns the tensor as an input, or nothing if `given` is null.
[[nodiscard]] std::optional<ConstTensor> optional_input_of(const char* name, const attend_tensor* given);

/// Converts the parameters. Returns the defaults if `given` is null. The result points to the same memory as `given`.
[[nodiscard]] Params params_of(const attend_params* given);

[[nodiscard]] ForwardCall forward_call_of(const attend_forward_call* given);
[[nodiscard]] BackwardCall backward_call_of(const attend_backward_call* given);

/// Returns `given`, or "auto" if it is null.
[[nodiscard]] inline std::string_view compute_of(const char* given) {
  return given == nullptr ? "auto" : given;
}

}  // namespace attend::c
