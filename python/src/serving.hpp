// Attention for serving from Python: decode, append and merge.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>

namespace attend::python {

namespace nb = nanobind;

/// The library's calls of the named tuples Tensors and Numbers (attend/_serving.py), without the GIL. The tensors are
/// Arrays, or tensors whose type has DLPack's C exchange table; those that are written are there already.
void decode(nb::handle tensors, nb::handle numbers, std::uintptr_t stream);
void append(nb::handle tensors, nb::handle numbers, std::uintptr_t stream);

/// Adds decode, append and merge to the extension module, and SERVING_TENSORS and SERVING_NUMBERS, the fields of the
/// named tuples that the first two take (attend/_serving.py).
void add_serving(nb::module_& m);

}  // namespace attend::python
