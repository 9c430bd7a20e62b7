// Attention for serving from Python: decode, append and merge.
#pragma once

#include <nanobind/nanobind.h>

namespace attend::python {

namespace nb = nanobind;

/// Adds decode, append and merge to the extension module, and SERVING_TENSORS and SERVING_NUMBERS, the fields of the
/// named tuples that the first two take (attend/_serving.py).
void add_serving(nb::module_& m);

}  // namespace attend::python
