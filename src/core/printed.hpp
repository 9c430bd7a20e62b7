// Formats text of the caller for messages, which are always one line.
#pragma once

#include <string>
#include <string_view>

namespace attend::core {

/// Returns the text in quotes, truncated if it is long, with '?' for unprintable characters.
[[nodiscard]] std::string printed(std::string_view text);

}  // namespace attend::core
