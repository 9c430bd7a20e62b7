// Words of the caller's in messages, which are one line whatever was given.
#pragma once

#include <string>
#include <string_view>

namespace attend::core {

/// In quotes, cut where it is long; '?' for what cannot be printed.
[[nodiscard]] std::string printed(std::string_view text);

}  // namespace attend::core
