#include "core/aliases.hpp"

#include <algorithm>
#include <array>

namespace attend::core {
namespace {

constexpr std::array kAliases = {
    Alias{"vanilla", "standard"},         Alias{"naive_attn", "naive"},
    Alias{"minimal_attn", "fa1"},         Alias{"flash_naive", "fa1"},
    Alias{"scalar2d", "flash_2d"},        Alias{"block_wmma_row_block", "wmma_row_block"},
    Alias{"kernel_mma", "mma"},           Alias{"kernel_mma_swizzle", "mma_swizzle"},
    Alias{"kernel_mma_qreg", "mma_qreg"}, Alias{"kernel_mma_qreg_async", "mma_qreg_async"},
};

bool is_spelling_of(std::string_view text, std::string_view name) noexcept {
  return std::equal(text.begin(), text.end(), name.begin(), name.end(),
                    [](char a, char b) { return (a == '-' ? '_' : a) == b; });
}

}  // namespace

std::span<const Alias> aliases() noexcept {
  return kAliases;
}

std::string_view without_alias(std::string_view name) noexcept {
  for (const Alias& alias : kAliases) {
    if (is_spelling_of(name, alias.name)) return alias.stands_for;
  }
  return name;
}

}  // namespace attend::core
