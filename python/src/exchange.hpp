// Tensors read through DLPack's C exchange table: no Python code, no capsule, no reference counted.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>  // in every source: without it std::string would convert in another way

namespace attend::python {

namespace nb = nanobind;

/// Does the type of `object` have the table (`__dlpack_c_exchange_api__`, DLPack 1.3), with all that is used here?
[[nodiscard]] bool has_exchange_table(nb::handle object);

/// What the table says of a tensor. Its pointers are the tensor's own: good while that lives unchanged.
/// @throws Error (kInvalidArgument) where the type has no table; what the table raises, as a Python exception.
[[nodiscard]] nb::dlpack::dltensor exchanged_tensor(nb::handle object);

/// The same; false where the type has no table or the table will not tell, of what has no memory for instance.
[[nodiscard]] bool try_exchange(nb::handle object, nb::dlpack::dltensor& tensor);

}  // namespace attend::python
