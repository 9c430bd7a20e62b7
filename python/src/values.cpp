#include "values.hpp"

#include <type_traits>

#include "attend/error.hpp"

namespace attend::python {
namespace {

[[noreturn]] void refuse(const char* name, nb::handle value, const char* allowed) {
  PyErr_Clear();
  throw Error(ErrorCode::kInvalidArgument,
              std::string(name) + ": " + nb::cast<std::string>(nb::repr(value)) + ", allowed " + allowed);
}

}  // namespace

nb::handle item(nb::handle named_tuple, std::size_t field) {
  PyObject* found = PyTuple_GetItem(named_tuple.ptr(), static_cast<Py_ssize_t>(field));
  if (found == nullptr) nb::raise_python_error();
  return found;
}

template <class T>
T value_of(const char* name, nb::handle value) {
  if constexpr (std::is_same_v<T, bool>) {
    for (const bool known : {true, false}) {
      const int equal = PyObject_RichCompareBool(value.ptr(), known ? Py_True : Py_False, Py_EQ);
      if (equal == 1) return known;
      if (equal < 0) break;
    }
    refuse(name, value, "True or False");
  } else if constexpr (std::is_same_v<T, double>) {
    const double number = PyFloat_AsDouble(value.ptr());
    if (PyErr_Occurred() != nullptr) refuse(name, value, "a number");
    return number;
  } else if constexpr (std::is_same_v<T, std::int64_t>) {
    const nb::object number = nb::steal(PyNumber_Index(value.ptr()));
    const std::int64_t whole = number.is_valid() ? PyLong_AsLongLong(number.ptr()) : 0;
    if (PyErr_Occurred() != nullptr) refuse(name, value, "a whole number of 64 bits");
    return whole;
  } else {
    static_assert(std::is_same_v<T, std::string>);
    if (!nb::isinstance<nb::str>(value)) refuse(name, value, "a string");
    return nb::cast<std::string>(value);
  }
}

template bool value_of<bool>(const char* name, nb::handle value);
template double value_of<double>(const char* name, nb::handle value);
template std::int64_t value_of<std::int64_t>(const char* name, nb::handle value);
template std::string value_of<std::string>(const char* name, nb::handle value);

}  // namespace attend::python
