// Which route a call on tensors of torch takes. Nothing else decides it.
//
// The direct route goes to the library. The other one, torch.ops.attend, goes through torch's dispatcher and is always
// right: modes, transforms of torch.func, tracers, compilers, profilers and subclasses of Tensor need it. It takes
// longer than a small kernel, because the dispatcher calls an operator written in Python twice, and torch's autograd of
// such an operator walks over its schema.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <span>

namespace attend::python {

namespace nb = nanobind;

struct Route {
  bool is_direct = false;       ///< false: torch.ops.attend, and what follows says nothing
  bool needs_autograd = false;  ///< gradients may be asked for
  bool needs_cast = false;      ///< autocast would cast q, k and v
};

/// The route of a call of `heads` (q, k and v, or one tensor of all three) and `others`, the tensors of Extras. All are
/// expected on one device, and the library refuses those that are not.
[[nodiscard]] Route route_of(std::span<const nb::handle> heads, std::span<const nb::handle> others = {});

/// May a call that autocast leaves alone take the direct route, and does nobody ask for its gradients?
[[nodiscard]] bool is_direct_without_gradients(std::span<const nb::handle> tensors);

/// Do autograd's engine and torch's modes let backward go the direct route? Its tensors have to be ordinary too.
[[nodiscard]] bool engine_allows_direct_route();

/// May backward go the direct route? `saved`: a tuple of tensors. dout and dlse may be None.
[[nodiscard]] bool backward_is_direct(const nb::tuple& saved, nb::handle dout, nb::handle dlse);

/// Does the memory of `x`, on a CPU or a GPU, hold its values? It does not if x is of a subclass or of another layout,
/// if a transform has wrapped it, or if its sign is still to be applied. `memory` is written if torch has the exchange
/// table.
[[nodiscard]] bool is_ordinary(nb::handle x, nb::dlpack::dltensor& memory);

}  // namespace attend::python
