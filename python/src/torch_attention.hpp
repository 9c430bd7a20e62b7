// The direct route of attend.attention and attend.attention_qkvpacked on torch tensors, with and without autograd.
// torch_route.hpp explains the routes.
#pragma once

#include <nanobind/nanobind.h>

namespace attend::python {

namespace nb = nanobind;

/// Adds learn_defaults (read_settings.hpp), learn_torch (torch_api.hpp), route_of (torch_route.hpp), the attention
/// functions, and the forward and backward passes of the autograd functions to the extension module.
/// python/attend/_core.pyi documents them.
void add_torch_attention(nb::module_& m);

}  // namespace attend::python
