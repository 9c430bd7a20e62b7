// Caches settings that have been read, because a model's calls repeat the same settings.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "arguments.hpp"

namespace attend::python {

/// A Settings tuple of attend/_settings.py, with the options and the layout for the library.
struct ReadSettings {
  nb::object tuple;
  Options options;
  Layout layout = Layout::kBhsd;
};

/// Stores the options of `attend.attention`: its keyword arguments in their order, with their defaults.
void learn_defaults(const nb::dict& defaults);

/// Returns the settings of an `attend.attention` call. `options` is the tuple of its keyword arguments in their order,
/// without return_lse. Returns null if Python must resolve the options, because an option is a tensor, is rarely given,
/// or has an unusual type. Requires learn_defaults and learn_torch.
/// @throws Error (kInvalidArgument) naming the option.
[[nodiscard]] std::shared_ptr<const ReadSettings> settings_of_options(const nb::tuple& options);

/// Returns the settings in `tuple`, a Settings. If this tuple object is cached, it is not read again.
/// @throws Error (kInvalidArgument) naming the setting.
[[nodiscard]] std::shared_ptr<const ReadSettings> settings_of_tuple(nb::handle tuple);

/// Exports learn_defaults.
void add_options(nb::module_& m);

}  // namespace attend::python
