// Tensors read through DLPack's C exchange table: no Python code, no capsule, no reference counted.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>  // in every source: without it std::string would convert in another way

namespace attend::python {

namespace nb = nanobind;

/// Does the type of `object` have the table (`__dlpack_c_exchange_api__`, DLPack 1.3), with all that is used here?
[[nodiscard]] bool has_exchange_table(nb::handle object);

/// The table's description of a tensor. Its pointers are the tensor's own, and valid while that lives unchanged.
/// @throws Error (kInvalidArgument) if the type has no table, or the table cannot describe the tensor.
[[nodiscard]] nb::dlpack::dltensor exchanged_tensor(nb::handle object);

/// The same; false if the type has no table, or the table cannot describe the tensor: it may have no memory.
[[nodiscard]] bool try_exchange(nb::handle object, nb::dlpack::dltensor& tensor);

}  // namespace attend::python
