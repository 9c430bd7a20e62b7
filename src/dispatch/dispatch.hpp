// Above the backends: their list, who may compute what, and which one does.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/backend.hpp"

namespace attend::dispatch {

/// Every backend; of those for one device, the best first.
[[nodiscard]] const std::vector<const core::Backend*>& all_backends();

/// The backend called `name`, by its own name or by an alias (core/aliases.hpp), or null.
[[nodiscard]] const core::Backend* find_backend(std::string_view name);

/// What the backend lacks for the problem, in one line, or nothing.
[[nodiscard]] std::optional<std::string> lack_of(const core::Backend& backend, const core::Problem& problem);

/// The backend that `compute` ("auto" or a name) stands for with tensors on the problem's device.
/// @throws Error (kInvalidArgument) where no backend of that device has the name; (kUnsupported) with what is lacking.
[[nodiscard]] const core::Backend& choose(std::string_view compute, const core::Problem& problem);

/// What every backend of the problem's device makes of it. `chosen`, which may be null, runs it.
[[nodiscard]] std::vector<Candidate> explain(const core::Backend* chosen, const core::Problem& problem);

}  // namespace attend::dispatch
