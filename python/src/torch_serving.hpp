// The direct route of attend.decode and attend.append on torch tensors. torch_route.hpp explains the routes.
#pragma once

#include <nanobind/nanobind.h>

namespace attend::python {

namespace nb = nanobind;

/// Adds learn_decode, learn_append, decode_of_options and append_of_options. python/attend/_core.pyi documents them.
void add_torch_serving(nb::module_& m);

}  // namespace attend::python
