#include "parser/flags.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "attend/error.hpp"

namespace attend::cli {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

[[noreturn]] void refuse(std::string_view flag, std::string_view text, std::string_view allowed) {
  throw Error(ErrorCode::kInvalidArgument, fmt::format("{}: '{}', allowed {}", flag, text, allowed));
}

/// Returns `text` as a number. Returns std::nullopt if any character does not belong to the number.
template <class Number>
std::optional<Number> parse_number(std::string_view text) {
  Number value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

CLI::Option* add_text(CLI::App& app, const std::string& flag, const char* type, const char* description,
                      std::function<void(const std::string&)> take) {
  return app.add_option_function<std::string>(flag, std::move(take), description)->type_name(type);
}

}  // namespace

std::int64_t parse_integer(std::string_view flag, std::string_view text, std::int64_t smallest, std::int64_t largest) {
  const auto value = parse_number<std::int64_t>(text);
  if (!value || *value < smallest || *value > largest) {
    refuse(flag, text, fmt::format("integers from {} to {}", smallest, largest));
  }
  return *value;
}

CLI::Option* add_integer(CLI::App& app, const std::string& flag, std::int64_t& target, std::int64_t smallest,
                         std::int64_t largest, const char* description) {
  return add_text(app, flag, "N", description,
                  [=, &target](const std::string& text) { target = parse_integer(flag, text, smallest, largest); });
}

CLI::Option* add_seed(CLI::App& app, const std::string& flag, std::uint64_t& target, const char* description) {
  return add_text(app, flag, "N", description, [=, &target](const std::string& text) {
    const auto value = parse_number<std::uint64_t>(text);
    if (!value) refuse(flag, text, "integers from 0 to 2^64 - 1");
    target = *value;
  });
}

CLI::Option* add_real(CLI::App& app, const std::string& flag, std::optional<double>& target, double smallest,
                      double largest, bool open_end, const char* description) {
  return add_text(app, flag, "X", description, [=, &target](const std::string& text) {
    const auto value = parse_number<double>(text);
    const bool fits = value && std::isfinite(*value) && *value >= smallest && *value <= largest;
    if (!fits || (open_end && *value == largest)) {
      std::string allowed = "finite numbers";
      if (smallest != -kInfinity) allowed += fmt::format(" >= {}", smallest);
      if (largest != kInfinity) allowed += fmt::format(" and {} {}", open_end ? "<" : "<=", largest);
      refuse(flag, text, allowed);
    }
    target = value;
  });
}

CLI::Option* add_choice(CLI::App& app, const std::string& flag, std::size_t& index, std::vector<std::string> allowed,
                        const char* description) {
  const std::string type = fmt::format("{}", fmt::join(allowed, "|"));
  return add_text(app, flag, type.c_str(), description, [=, &index](const std::string& text) {
    const auto found = std::find(allowed.begin(), allowed.end(), text);
    if (found == allowed.end()) refuse(flag, text, fmt::format("{}", fmt::join(allowed, ", ")));
    index = static_cast<std::size_t>(found - allowed.begin());
  });
}

CLI::Option* add_path(CLI::App& app, const std::string& flag, std::filesystem::path& target, const char* description) {
  return add_text(app, flag, "PATH", description, [=, &target](const std::string& text) {
    if (text.empty()) refuse(flag, text, "a path");
    target = text;
  });
}

}  // namespace attend::cli
