#include "parser/names.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "attend/error.hpp"
#include "core/aliases.hpp"

namespace attend::cli {
namespace {

/// Replaces every - in the text by _, except at the beginning.
std::string with_underscores(std::string_view text) {
  std::string out(text);
  const std::size_t begin = std::min(out.find_first_not_of('-'), out.size());
  std::replace(out.begin() + static_cast<std::ptrdiff_t>(begin), out.end(), '-', '_');
  return out;
}

/// Returns the Levenshtein distance: the number of letters that must be inserted, removed or replaced to change a into
/// b.
std::size_t edits(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row[b.size()];
}

}  // namespace

std::string did_you_mean(std::string_view text, const std::vector<std::string>& candidates) {
  const std::string plain = with_underscores(text);
  if (plain.size() < 2) return "";
  std::string_view best;
  std::size_t least =
      std::max<std::size_t>(plain.size() < 4 ? 1 : 2, plain.size() / 3) + 1;  // two swapped letters have distance 2
  for (const std::string& candidate : candidates) {
    const bool begins = candidate.starts_with(plain);
    const std::size_t cost = begins ? 1 : edits(plain, candidate);
    if (cost < least) {
      least = cost;
      best = candidate;
    }
  }
  return best.empty() ? "" : fmt::format("; did you mean {}?", best);
}

std::string known_name(std::string_view flag, std::string_view name, const std::vector<std::string>& allowed) {
  std::string plain = with_underscores(name);
  const auto is_allowed = [&](const std::string& text) {
    return std::find(allowed.begin(), allowed.end(), text) != allowed.end();
  };
  if (is_allowed(plain)) return plain;
  if (const std::string target(core::without_alias(plain)); is_allowed(target)) return target;
  throw Error(ErrorCode::kInvalidArgument, fmt::format("{}: '{}', allowed {}{}", flag, name, fmt::join(allowed, ", "),
                                                       did_you_mean(plain, allowed)));
}

std::vector<std::string> with_plain_flags(std::vector<std::string> arguments) {
  for (std::string& argument : arguments) {
    if (!argument.starts_with("--")) continue;
    const std::size_t end = std::min(argument.find('='), argument.size());
    argument = with_underscores(argument.substr(0, end)) + argument.substr(end);
  }
  return arguments;
}

}  // namespace attend::cli
