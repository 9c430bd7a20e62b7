// Settings that are read once and kept: a model's calls have the same ones step after step.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "arguments.hpp"

namespace attend::python {

/// A Settings of attend/_settings.py, and the library's options and layout that it stands for.
struct ReadSettings {
  nb::object tuple;
  Options options;
  Layout layout = Layout::kBhsd;
};

/// Learns the options of `attend.attention`: its keyword arguments in their order, with their defaults.
void learn_defaults(const nb::dict& defaults);

/// The settings of a call of `attend.attention`. `options`: the tuple of its keyword arguments in their order, without
/// return_lse. Null if Python has to resolve them: an option is a tensor, is rarely given, or has an unusual type.
/// @throws Error (kInvalidArgument) naming the option.
/// After learn_defaults and learn_torch.
[[nodiscard]] std::shared_ptr<const ReadSettings> settings_of_options(const nb::tuple& options);

/// The settings in `tuple`, a Settings. They are not read again if this very tuple is known.
/// @throws Error (kInvalidArgument) naming the setting.
[[nodiscard]] std::shared_ptr<const ReadSettings> settings_of_tuple(nb::handle tuple);

/// Exports learn_defaults.
void add_options(nb::module_& m);

}  // namespace attend::python
