// attend.decode and attend.append on tensors of torch: the direct route.
#pragma once

#include <nanobind/nanobind.h>

namespace attend::python {

namespace nb = nanobind;

/// Adds learn_decode, learn_append, decode_of_options and append_of_options, as python/attend/_core.pyi has them.
void add_torch_serving(nb::module_& m);

}  // namespace attend::python
