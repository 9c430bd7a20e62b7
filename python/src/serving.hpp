// Attention for serving from Python: decode, append and merge.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>

namespace attend::python {

namespace nb = nanobind;

/// Run the library on the named tuples Tensors and Numbers (attend/_serving.py), without holding the GIL. A tensor is
/// an Array or has a type with DLPack's C exchange table. The caller has already allocated the outputs.
void decode(nb::handle tensors, nb::handle numbers, std::uintptr_t stream);
void append(nb::handle tensors, nb::handle numbers, std::uintptr_t stream);

/// Adds decode, append and merge to the extension module, and SERVING_TENSORS and SERVING_NUMBERS, the field names of
/// the named tuples Tensors and Numbers (attend/_serving.py).
void add_serving(nb::module_& m);

}  // namespace attend::python
