// Chooses the route of a call on torch tensors. No other file makes this choice.
//
// On the direct route, C++ calls the library without torch's dispatcher. The other route calls torch.ops.attend through
// the dispatcher and always works. The other route is required for modes, transforms of torch.func, tracers, compilers,
// profilers and Tensor subclasses. The other route takes longer than a small kernel runs, because the dispatcher calls
// an operator written in Python twice, and torch's autograd examines every argument in the operator's schema.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <span>

namespace attend::python {

namespace nb = nanobind;

struct Route {
  bool is_direct = false;       ///< if false, the caller must use torch.ops.attend and ignore the other members
  bool needs_autograd = false;  ///< whether gradients may be requested
  bool needs_cast = false;      ///< whether autocast would cast q, k and v
};

/// Returns the route of a call. If the tensors are on different devices, the library refuses the call later.
/// @param heads   q, k and v, or one tensor that contains all three
/// @param others  the tensors in Extras
[[nodiscard]] Route route_of(std::span<const nb::handle> heads, std::span<const nb::handle> others = {});

/// Returns whether a call can use the direct route and needs no gradients. The result is valid only if autocast does
/// not apply to the call.
[[nodiscard]] bool is_direct_without_gradients(std::span<const nb::handle> tensors);

/// Returns whether the autograd engine and torch's modes allow the direct route for backward. The caller must also
/// check the tensors with is_ordinary().
[[nodiscard]] bool engine_allows_direct_route();

/// Returns whether backward can use the direct route. `saved` is a tuple of tensors. dout and dlse may be None.
[[nodiscard]] bool backward_is_direct(const nb::tuple& saved, nb::handle dout, nb::handle dlse);

/// Returns whether `x` is a tensor on a CPU or GPU whose memory contains its values. Returns false for a subclass, for
/// a layout without strides, for a tensor that a transform has wrapped, and for a tensor with a pending negation. If
/// torch has the exchange table, also stores the description of the tensor in `memory`.
[[nodiscard]] bool is_ordinary(nb::handle x, nb::dlpack::dltensor& memory);

}  // namespace attend::python
