// Reads numbers and strings from named tuples.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>  // required in every source; otherwise std::string would have a different converter

#include <cstddef>
#include <cstdint>
#include <string>

namespace attend::python {

namespace nb = nanobind;

/// Returns a field by its position, which is faster than by name.
[[nodiscard]] nb::handle item(nb::handle named_tuple, std::size_t field);

/// Returns the value of the argument `name` as a bool, double, std::int64_t or std::string. A number may have any type
/// that converts to the result.
/// @throws Error (kInvalidArgument) naming the argument if its type does not convert.
template <class T>
[[nodiscard]] T value_of(const char* name, nb::handle value);

extern template bool value_of<bool>(const char* name, nb::handle value);
extern template double value_of<double>(const char* name, nb::handle value);
extern template std::int64_t value_of<std::int64_t>(const char* name, nb::handle value);
extern template std::string value_of<std::string>(const char* name, nb::handle value);

}  // namespace attend::python
