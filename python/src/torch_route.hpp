// Chooses the route of a call on torch tensors. No other code makes this choice.
//
// The direct route calls the library. The other route, torch.ops.attend, goes through torch's dispatcher and always
// works. Modes, transforms of torch.func, tracers, compilers, profilers and Tensor subclasses require it. Its overhead
// exceeds the time of a small kernel, because the dispatcher calls an operator written in Python twice and torch's
// autograd walks the operator's schema.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <span>

namespace attend::python {

namespace nb = nanobind;

struct Route {
  bool is_direct = false;       ///< if false, use torch.ops.attend and ignore the other fields
  bool needs_autograd = false;  ///< gradients may be requested
  bool needs_cast = false;      ///< autocast would cast q, k and v
};

/// Returns the route of a call. `heads` is q, k and v, or one tensor with all three. `others` are the tensors of
/// Extras. All tensors should be on one device; otherwise the library refuses the call.
[[nodiscard]] Route route_of(std::span<const nb::handle> heads, std::span<const nb::handle> others = {});

/// Returns whether a call can use the direct route and needs no gradients. Valid only for calls that autocast does not
/// affect.
[[nodiscard]] bool is_direct_without_gradients(std::span<const nb::handle> tensors);

/// Returns whether the autograd engine and torch's modes allow the direct route for backward. The tensors must be
/// ordinary too.
[[nodiscard]] bool engine_allows_direct_route();

/// Returns whether backward can use the direct route. `saved` is a tuple of tensors. dout and dlse may be None.
[[nodiscard]] bool backward_is_direct(const nb::tuple& saved, nb::handle dout, nb::handle dlse);

/// Returns whether the memory of `x`, on a CPU or a GPU, holds its values. Returns false for a subclass, a non-strided
/// layout, a tensor wrapped by a transform, or a pending negation. Writes `memory` if torch has the exchange table.
[[nodiscard]] bool is_ordinary(nb::handle x, nb::dlpack::dltensor& memory);

}  // namespace attend::python
