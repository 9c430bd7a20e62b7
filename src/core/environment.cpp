#include "core/environment.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <utility>

#include "attend/error.hpp"

namespace attend::core {
namespace {

constexpr std::string_view kUnlimited = "unlimited";

[[noreturn]] void refuse_value(const char* name, std::string_view value, std::string_view remark,
                               const std::string& allowed) {
  throw Error(ErrorCode::kInvalidArgument, fmt::format("{}: '{}', allowed{}: {}", name, value, remark, allowed));
}

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](unsigned char c) { return std::tolower(c); });
  return out;
}

constexpr std::pair<std::string_view, double> kUnits[] = {
    {"", 1},      {"b", 1},        {"kb", 1e3},     {"mb", 1e6},     {"gb", 1e9},
    {"tb", 1e12}, {"kib", 0x1p10}, {"mib", 0x1p20}, {"gib", 0x1p30}, {"tib", 0x1p40}};

}  // namespace

const char* environment(const char* name) noexcept {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : nullptr;
}

std::optional<std::size_t> environment_choice(const char* name, std::span<const std::string_view> allowed,
                                              std::string_view remark) {
  const char* value = environment(name);
  if (value == nullptr) return std::nullopt;
  const auto found = std::find(allowed.begin(), allowed.end(), value);
  if (found == allowed.end()) refuse_value(name, value, remark, fmt::format("{}", fmt::join(allowed, ", ")));
  return static_cast<std::size_t>(found - allowed.begin());
}

std::vector<std::string_view> environment_list(const char* name, std::span<const std::string_view> allowed) {
  const char* value = environment(name);
  std::vector<std::string_view> words;
  if (value == nullptr) return words;
  for (std::string_view rest = value;;) {
    const std::size_t comma = std::min(rest.find(','), rest.size());
    words.push_back(rest.substr(0, comma));
    if (std::find(allowed.begin(), allowed.end(), words.back()) == allowed.end()) {
      refuse_value(name, words.back(), "", fmt::format("{}, comma-separated", fmt::join(allowed, ", ")));
    }
    if (comma == rest.size()) return words;
    rest.remove_prefix(comma + 1);
  }
}

std::optional<std::uint64_t> environment_bytes(const char* name) {
  const char* value = environment(name);
  if (value == nullptr) return std::nullopt;
  const auto bytes = parse_bytes(value);
  if (!bytes) {
    refuse_value(name, value, "", "0, unlimited, a number of bytes, or one with KiB, MiB, GiB, TiB, KB, MB, GB, TB");
  }
  return bytes;
}

std::optional<std::uint64_t> parse_bytes(std::string_view text) {
  const std::string plain = lower(text);
  if (plain == kUnlimited) return kUnlimitedBytes;
  double number = 0;
  const char* end = plain.data() + plain.size();
  const auto [rest, error] = std::from_chars(plain.data(), end, number, std::chars_format::fixed);
  if (error != std::errc() || plain.starts_with('-') || !std::isdigit(static_cast<unsigned char>(plain[0]))) {
    return std::nullopt;
  }
  std::string_view unit(rest, end);
  while (unit.starts_with(' ')) unit.remove_prefix(1);
  for (const auto& [name, factor] : kUnits) {
    const double bytes = number * factor;
    if (unit == name && bytes < 0x1p63) return static_cast<std::uint64_t>(bytes);
  }
  return std::nullopt;
}

std::string bytes_text(std::uint64_t bytes) {
  if (bytes == kUnlimitedBytes) return std::string(kUnlimited);
  if (bytes < 1024) return fmt::format("{} byte{}", bytes, bytes == 1 ? "" : "s");
  auto number = static_cast<double>(bytes);
  std::string_view unit;
  for (const std::string_view larger : std::array<std::string_view, 4>{"KiB", "MiB", "GiB", "TiB"}) {
    if (number < 1024) break;
    number /= 1024;
    unit = larger;
  }
  return fmt::format("{:.1f} {}", number, unit);
}

}  // namespace attend::core
