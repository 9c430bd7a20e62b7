// The list of all backends, the reasons why they cannot run a problem (lacks), and the choice of a backend.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/backend.hpp"

namespace attend::dispatch {

/// Returns every backend. For each device, the backends are in order of preference.
[[nodiscard]] const std::vector<const core::Backend*>& all_backends();

/// Returns the backend with this name or alias (core/aliases.hpp), or null.
[[nodiscard]] const core::Backend* find_backend(std::string_view name);

/// Returns the reason, in one line, why the backend cannot run the problem. Returns nothing if it can.
[[nodiscard]] std::optional<std::string> lack_of(const core::Backend& backend, const core::Problem& problem);

/// Returns the backend for `compute`, which is "auto" or a name, on the problem's device.
/// @throws Error. kInvalidArgument means that no backend of that device has the name. kUnsupported contains the reason
///   why the backend cannot run the problem.
[[nodiscard]] const core::Backend& choose(std::string_view compute, const core::Problem& problem);

/// Returns how every backend of the problem's device would run the problem. `chosen` is the backend that runs it, or
/// null.
[[nodiscard]] std::vector<Candidate> explain(const core::Backend* chosen, const core::Problem& problem);

}  // namespace attend::dispatch
