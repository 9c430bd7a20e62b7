// Access to the folder of compiled kernels, for the Python package.
#pragma once

#include <nanobind/nanobind.h>

namespace attend::python {

namespace nb = nanobind;

/// Adds cache_info, cache_clear and cache_text to the extension module.
void add_cache(nb::module_& m);

}  // namespace attend::python
