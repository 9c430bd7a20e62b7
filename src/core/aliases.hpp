// Aliases: the names that other projects use for algorithms like those of our backends. docs/names.md maps the programs
// of those projects to ours.
#pragma once

#include <span>
#include <string_view>

namespace attend::core {

struct Alias {
  std::string_view name;
  std::string_view stands_for;  ///< name of the backend
};

/// Returns every alias. No alias equals a backend's name.
[[nodiscard]] std::span<const Alias> aliases() noexcept;

/// Returns the backend's name if `name` is an alias, and otherwise `name`. In an alias, - is equivalent to _.
[[nodiscard]] std::string_view without_alias(std::string_view name) noexcept;

}  // namespace attend::core
