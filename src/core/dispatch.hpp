// The list of backends, and who may compute what.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/backend.hpp"

namespace attend::core {

/// Every backend; of those for one device, the best first.
[[nodiscard]] const std::vector<const Backend*>& all_backends();

/// The backend called `name`, by its own name or by an alias (core/aliases.hpp), or null.
[[nodiscard]] const Backend* find_backend(std::string_view name);

/// What the backend lacks for the problem, in one line, or nothing.
[[nodiscard]] std::optional<std::string> lack_of(const Backend& backend, const Problem& problem);

/// The backend that `compute` ("auto" or a name) stands for with tensors on the problem's device.
/// @throws Error (kInvalidArgument) where no backend of that device has the name; (kUnsupported) with what is lacking.
[[nodiscard]] const Backend& choose(std::string_view compute, const Problem& problem);

}  // namespace attend::core
