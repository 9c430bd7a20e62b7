// Computes attention on the direct route (torch_route.hpp). torch allocates the results, and the library computes them.
// No Python code runs.
//
// These functions support tensors with four dimensions and a contiguous last dimension. They also support q, k and v
// in one tensor. They do not support extras. For unsupported tensors, the returned objects are invalid.
// attend/torch/_operators.py then computes the results.
#pragma once

#include <nanobind/nanobind.h>

#include <array>

namespace attend::python {

namespace nb = nanobind;

/// The results of a forward pass. lse is None if the caller did not request it.
struct ForwardResults {
  nb::object o, lse;

  [[nodiscard]] bool is_valid() const { return o.is_valid(); }
};

/// Runs a forward pass. route_of must have accepted the tensors. `settings` is a Settings tuple.
[[nodiscard]] ForwardResults forward_results(nb::handle q, nb::handle k, nb::handle v, nb::handle settings,
                                             bool return_lse);

/// Returns whether forward_results_packed supports the tensor, whose shape is (batch, seqlen, 3, heads, head_dim).
/// route_of must have accepted the tensor.
[[nodiscard]] bool is_packed(nb::handle qkv);

/// Runs a forward pass on q, k and v in one tensor. is_packed must have accepted the tensor.
[[nodiscard]] ForwardResults forward_results_packed(nb::handle qkv, nb::handle settings, bool return_lse);

/// Computes dq, dk and dv. `saved` contains q, k, v, o and lse. route_of need not check these tensors. dout and dlse
/// may be None.
[[nodiscard]] std::array<nb::object, 3> backward_results(const nb::tuple& saved, nb::handle dout, nb::handle dlse,
                                                         nb::handle settings);

/// Computes dqkv, the gradient of a tensor with q, k and v. `saved` contains qkv, o and lse. dout and dlse may be None.
[[nodiscard]] nb::object backward_results_packed(const nb::tuple& saved, nb::handle dout, nb::handle dlse,
                                                 nb::handle settings);

}  // namespace attend::python
