// Names that a user types: spellings and aliases that are taken, and what may have been meant by one that is not.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace attend::cli {

/// Which of `allowed` a backend's or kernel's name stands for: itself, with - for _, or by an alias (docs/names.md has
/// the table). Abbreviations stand for nothing.
/// @throws Error (kInvalidArgument): "FLAG: 'NAME', allowed A, B, ...; did you mean A?"
[[nodiscard]] std::string known_name(std::string_view flag, std::string_view name,
                                     const std::vector<std::string>& allowed);

/// "; did you mean X?" where one of `candidates` is nearly `text`, else nothing.
[[nodiscard]] std::string did_you_mean(std::string_view text, const std::vector<std::string>& candidates);

/// `arguments` with _ for every - inside of the name of a --flag.
[[nodiscard]] std::vector<std::string> with_plain_flags(std::vector<std::string> arguments);

}  // namespace attend::cli
