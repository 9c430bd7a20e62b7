// Reads tensors through DLPack's C exchange table, without Python code, capsules or reference counts.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>  // required in every source; otherwise std::string would have a different converter

namespace attend::python {

namespace nb = nanobind;

/// Returns whether the type of `object` has the table (`__dlpack_c_exchange_api__`, DLPack 1.3) with all functions used
/// here.
[[nodiscard]] bool has_exchange_table(nb::handle object);

/// Returns the table's description of a tensor. Its pointers belong to the tensor and are valid while the tensor lives
/// unchanged.
/// @throws Error (kInvalidArgument) if the type has no table or the table cannot describe the tensor.
[[nodiscard]] nb::dlpack::dltensor exchanged_tensor(nb::handle object);

/// Writes the description to `tensor`. Returns false if the type has no table or the table cannot describe the tensor,
/// e.g. because it has no memory.
[[nodiscard]] bool try_exchange(nb::handle object, nb::dlpack::dltensor& tensor);

}  // namespace attend::python
