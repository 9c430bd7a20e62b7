// A cache of settings that have been converted for the library. The cache saves time, because a model calls attention
// with the same settings many times.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "arguments.hpp"

namespace attend::python {

/// A named tuple Settings (attend/_settings.py), together with the options and the layout that were read from it.
struct ReadSettings {
  nb::object tuple;
  Options options;
  Layout layout = Layout::kBhsd;
};

/// Stores the names and default values of the keyword arguments of `attend.attention`, in order.
void learn_defaults(const nb::dict& defaults);

/// Converts the options of an `attend.attention` call. Returns null if the Python code must convert them. The Python
/// code must convert the options if an option is a tensor, is rarely given, or has an unusual type. learn_defaults and
/// learn_torch must have been called.
/// @param options  the values of all keyword arguments in order, without return_lse
/// @throws Error (kInvalidArgument) if an option is invalid. The message names the option.
[[nodiscard]] std::shared_ptr<const ReadSettings> settings_of_options(const nb::tuple& options);

/// Returns the settings in a named tuple Settings. If this tuple object is in the cache, it is not read again.
/// @throws Error (kInvalidArgument) if a setting has the wrong type. The message names the setting.
[[nodiscard]] std::shared_ptr<const ReadSettings> settings_of_tuple(nb::handle tuple);

/// Adds learn_defaults to the extension module.
void add_options(nb::module_& m);

}  // namespace attend::python
