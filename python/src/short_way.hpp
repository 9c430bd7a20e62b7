// A call on torch's tensors with no Python between them and the library, for what most calls are: attend/torch has the
// long way, which is always right.
#pragma once

#include <nanobind/nanobind.h>

namespace attend::python {

namespace nb = nanobind;

/// Adds learn_torch (torch_side.hpp), learn_ways and what python/attend/_core.pyi has of short and plain ways.
void add_short_way(nb::module_& m);

}  // namespace attend::python
