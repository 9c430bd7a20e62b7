// What other projects call our backends. docs/names.md maps their programs to ours.
#pragma once

#include <span>
#include <string_view>

namespace attend::core {

struct Alias {
  std::string_view name;
  std::string_view stands_for;  ///< a backend's own name
};

/// Every alias, none of which is a backend's own name.
[[nodiscard]] std::span<const Alias> aliases() noexcept;

/// The backend's own name that `name` stands for: that of an alias, else `name` itself. A - counts as _ in an alias.
[[nodiscard]] std::string_view without_alias(std::string_view name) noexcept;

}  // namespace attend::core
