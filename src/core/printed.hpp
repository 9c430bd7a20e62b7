// Formats a text of the caller so that it fits into an error message of one line.
#pragma once

#include <string>
#include <string_view>

namespace attend::core {

/// Returns the text in quotes. Truncates a long text and replaces unprintable characters by '?'.
[[nodiscard]] std::string printed(std::string_view text);

}  // namespace attend::core
