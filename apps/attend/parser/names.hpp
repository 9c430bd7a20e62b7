// Names that the user types: accepted spellings, aliases, and suggestions for unknown names.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace attend::cli {

/// Returns the element of `allowed` that the user means by `name`, which is the name of a backend or kernel. `name` may
/// contain - instead of _, and it may be an alias (docs/names.md). Abbreviations are not accepted.
/// @throws Error (kInvalidArgument) with a text like "FLAG: 'NAME', allowed A, B, ...; did you mean A?"
[[nodiscard]] std::string known_name(std::string_view flag, std::string_view name,
                                     const std::vector<std::string>& allowed);

/// Returns "; did you mean X?" if a candidate X is similar to `text`. Otherwise returns an empty text.
[[nodiscard]] std::string did_you_mean(std::string_view text, const std::vector<std::string>& candidates);

/// Returns `arguments` with - replaced by _ inside the names of flags (--flag).
[[nodiscard]] std::vector<std::string> with_plain_flags(std::vector<std::string> arguments);

}  // namespace attend::cli
