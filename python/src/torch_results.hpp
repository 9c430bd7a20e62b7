// Computation of the direct route. torch allocates the results and the library computes them, without Python code.
//
// Supports tensors of four dimensions with a contiguous last dimension, and q, k and v in one tensor, both without
// extras. For other tensors the results are invalid, and attend/torch/_operators.py computes them.
#pragma once

#include <nanobind/nanobind.h>

#include <array>

namespace attend::python {

namespace nb = nanobind;

/// Results of a forward pass. lse is None if it was not requested.
struct ForwardResults {
  nb::object o, lse;

  [[nodiscard]] bool is_valid() const { return o.is_valid(); }
};

/// Computes forward. route_of must have accepted the tensors. `settings` is a Settings tuple.
[[nodiscard]] ForwardResults forward_results(nb::handle q, nb::handle k, nb::handle v, nb::handle settings,
                                             bool return_lse);

/// Returns whether forward_results_packed supports the tensor (batch, seqlen, 3, heads, head_dim). route_of must have
/// accepted the tensor.
[[nodiscard]] bool is_packed(nb::handle qkv);

[[nodiscard]] ForwardResults forward_results_packed(nb::handle qkv, nb::handle settings, bool return_lse);

/// Computes dq, dk and dv. `saved` holds q, k, v, o and lse, which need no check by route_of. dout and dlse may be
/// None.
[[nodiscard]] std::array<nb::object, 3> backward_results(const nb::tuple& saved, nb::handle dout, nb::handle dlse,
                                                         nb::handle settings);

/// Computes dqkv. `saved` holds qkv, o and lse.
[[nodiscard]] nb::object backward_results_packed(const nb::tuple& saved, nb::handle dout, nb::handle dlse,
                                                 nb::handle settings);

}  // namespace attend::python
