// The direct route's work: results allocated by torch, computed by the library, with no Python in between.
//
// It takes dense tensors of four dimensions, or q, k and v in one tensor, without extras. The results of others are not
// valid: attend/torch/_operators.py computes them.
#pragma once

#include <nanobind/nanobind.h>

#include <array>

namespace attend::python {

namespace nb = nanobind;

/// Of a forward pass. lse is None if it is not wanted.
struct ForwardResults {
  nb::object o, lse;

  [[nodiscard]] bool is_valid() const { return o.is_valid(); }
};

/// Of tensors that route_of has seen. `settings`: a Settings.
[[nodiscard]] ForwardResults forward_results(nb::handle q, nb::handle k, nb::handle v, nb::handle settings,
                                             bool return_lse);

/// Can forward_results_packed compute this? (batch, seqlen, 3, heads, head_dim), which route_of has seen.
[[nodiscard]] bool is_packed(nb::handle qkv);

[[nodiscard]] ForwardResults forward_results_packed(nb::handle qkv, nb::handle settings, bool return_lse);

/// dq, dk, dv. `saved`: q, k, v, o, lse, which route_of need not have seen. dout and dlse may be None.
[[nodiscard]] std::array<nb::object, 3> backward_results(const nb::tuple& saved, nb::handle dout, nb::handle dlse,
                                                         nb::handle settings);

/// dqkv. `saved`: qkv, o, lse.
[[nodiscard]] nb::object backward_results_packed(const nb::tuple& saved, nb::handle dout, nb::handle dlse,
                                                 nb::handle settings);

}  // namespace attend::python
