// The serving functions of the Python package: decode, append and merge.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>

namespace attend::python {

namespace nb = nanobind;

/// Converts the named tuples Tensors and Numbers (attend/_serving.py) and runs decode. Releases the GIL meanwhile. Each
/// tensor is an Array, or its type has DLPack's C exchange table. The caller must have allocated the outputs.
void decode(nb::handle tensors, nb::handle numbers, std::uintptr_t stream);
/// Runs append. The arguments are those of decode.
void append(nb::handle tensors, nb::handle numbers, std::uintptr_t stream);

/// Adds decode, append and merge to the extension module. Also adds SERVING_TENSORS and SERVING_NUMBERS, the field
/// names of the named tuples Tensors and Numbers (attend/_serving.py).
void add_serving(nb::module_& m);

}  // namespace attend::python
