// Reads numbers and strings from the fields of named tuples.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>  // required in every source; otherwise std::string would have a different converter

#include <cstddef>
#include <cstdint>
#include <string>

namespace attend::python {

namespace nb = nanobind;

/// Returns the field at a position. This is faster than reading a field by name.
[[nodiscard]] nb::handle item(nb::handle named_tuple, std::size_t field);

/// Converts the argument `name` to a bool, double, std::int64_t or std::string. Any Python type that converts to the
/// requested type is allowed.
/// @throws Error (kInvalidArgument) if `value` cannot be converted. The message contains `name`.
template <class T>
[[nodiscard]] T value_of(const char* name, nb::handle value);

extern template bool value_of<bool>(const char* name, nb::handle value);
extern template double value_of<double>(const char* name, nb::handle value);
extern template std::int64_t value_of<std::int64_t>(const char* name, nb::handle value);
extern template std::string value_of<std::string>(const char* name, nb::handle value);

}  // namespace attend::python
