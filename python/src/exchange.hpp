// Reads tensors through the C exchange table of DLPack. Such a read requires no Python code, no capsules and no
// reference counts.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>  // required in every source; otherwise std::string would have a different converter

namespace attend::python {

namespace nb = nanobind;

/// Returns whether the type of `object` has a C exchange table (`__dlpack_c_exchange_api__`, DLPack 1.3) with all
/// functions that this file uses.
[[nodiscard]] bool has_exchange_table(nb::handle object);

/// Returns the DLPack description of a tensor. The pointers in the description belong to the tensor. They are valid
/// until the tensor is changed or destroyed.
/// @throws Error (kInvalidArgument) if the type of the object has no exchange table, or if the table cannot describe
///         the tensor.
[[nodiscard]] nb::dlpack::dltensor exchanged_tensor(nb::handle object);

/// Stores the DLPack description of a tensor in `tensor`. Returns false if the type of the object has no exchange
/// table, or if the table cannot describe the tensor, for example because the tensor has no memory.
[[nodiscard]] bool try_exchange(nb::handle object, nb::dlpack::dltensor& tensor);

}  // namespace attend::python
