#include "core/printed.hpp"

#include <cstddef>

namespace attend::core {

std::string printed(std::string_view text) {
  constexpr std::size_t kMost = 24;
  std::string shown;
  for (const char c : text.substr(0, kMost)) shown += c >= ' ' && c <= '~' ? c : '?';
  return "'" + shown + (text.size() > kMost ? "...'" : "'");
}

}  // namespace attend::core
