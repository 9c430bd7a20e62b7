// Numbers and texts of named tuples.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>  // in every source: without it std::string would convert in another way

#include <cstddef>
#include <cstdint>
#include <string>

namespace attend::python {

namespace nb = nanobind;

/// A field by its position, which is quicker than by name.
[[nodiscard]] nb::handle item(nb::handle named_tuple, std::size_t field);

/// The value of the argument `name` as a bool, double, std::int64_t or std::string. A number may be of any type that
/// converts to one.
/// @throws Error (kInvalidArgument) naming the argument, for another type.
template <class T>
[[nodiscard]] T value_of(const char* name, nb::handle value);

extern template bool value_of<bool>(const char* name, nb::handle value);
extern template double value_of<double>(const char* name, nb::handle value);
extern template std::int64_t value_of<std::int64_t>(const char* name, nb::handle value);
extern template std::string value_of<std::string>(const char* name, nb::handle value);

}  // namespace attend::python
