// Names that other projects use for our backends. docs/names.md maps their programs to ours.
#pragma once

#include <span>
#include <string_view>

namespace attend::core {

struct Alias {
  std::string_view name;
  std::string_view stands_for;  ///< the backend's name
};

/// Returns every alias. No alias equals a backend's name.
[[nodiscard]] std::span<const Alias> aliases() noexcept;

/// Returns the backend's name for an alias, otherwise `name`. In an alias, - counts as _.
[[nodiscard]] std::string_view without_alias(std::string_view name) noexcept;

}  // namespace attend::core
