// Settings without extras, read once: a model's calls have the same ones step after step.
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <memory>

#include "arguments.hpp"

namespace attend::python {

/// A Settings of attend/_settings.py, and what the library makes of it.
struct PlainSettings {
  nb::object tuple;
  Options options;
  Layout layout = Layout::kBhsd;

  /// @throws Error (kInvalidArgument) naming the setting.
  [[nodiscard]] static PlainSettings read(nb::handle tuple);

  /// Valid as long as this is.
  [[nodiscard]] Params params() const;
};

/// layout, causal, scale, dropout_p, deterministic, compute, as a caller of `attention` gives them.
using PlainOptions = std::array<nb::handle, 6>;

/// What is known of the options; where nothing is, `make` (of attend/_settings.py) is asked for a Settings of theirs.
/// Null where it gives None.
[[nodiscard]] std::shared_ptr<const PlainSettings> settings_of(const PlainOptions& options, nb::handle make);

/// The known ones that are this very tuple, or what it says, read now.
[[nodiscard]] std::shared_ptr<const PlainSettings> known_or_read(nb::handle tuple);

}  // namespace attend::python
