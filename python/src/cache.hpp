// Functions with which the Python package reads and clears the cache folder of compiled kernels.
#pragma once

#include <nanobind/nanobind.h>

namespace attend::python {

namespace nb = nanobind;

/// Adds cache_info, cache_clear and cache_text to the extension module.
void add_cache(nb::module_& m);

}  // namespace attend::python
