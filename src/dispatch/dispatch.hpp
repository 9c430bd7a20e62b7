// List of the backends, their lacks for a problem, and the choice between them.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/backend.hpp"

namespace attend::dispatch {

/// Returns every backend; for each device, the best first.
[[nodiscard]] const std::vector<const core::Backend*>& all_backends();

/// Returns the backend with this name or alias (core/aliases.hpp), or null.
[[nodiscard]] const core::Backend* find_backend(std::string_view name);

/// Returns the reason why the backend cannot run the problem, in one line, or nothing.
[[nodiscard]] std::optional<std::string> lack_of(const core::Backend& backend, const core::Problem& problem);

/// Returns the backend for `compute` ("auto" or a name) on the problem's device.
/// @throws Error (kInvalidArgument) if no backend of that device has the name; (kUnsupported) with the reason if the
///   backend cannot run the problem.
[[nodiscard]] const core::Backend& choose(std::string_view compute, const core::Problem& problem);

/// Returns how every backend of the problem's device would run the problem. `chosen`, which may be null, runs it.
[[nodiscard]] std::vector<Candidate> explain(const core::Backend* chosen, const core::Problem& problem);

}  // namespace attend::dispatch
