// Reads environment variables. All other code reads them by these functions. A variable that is unset or empty has no
// effect. If a value is not allowed, the functions throw. The error is one line with the variable's name, the value and
// the allowed values.
//
// A variable is read in the first call that needs it. It is never read while the library is loaded, because no caller
// could then catch the exception. docs/operations.md lists every variable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace attend::core {

/// Returns the value of an environment variable, or null if it is unset or empty.
[[nodiscard]] const char* environment(const char* name) noexcept;

/// Returns the index in `allowed` of the variable's value. Returns nothing if the variable is unset or empty.
/// @param remark  text after the word "allowed" in the error message, for example " on this processor"
/// @throws Error (kInvalidArgument) for any other value, with a text like "ATTEND_CHECK: 'yes', allowed: 0, 1"
[[nodiscard]] std::optional<std::size_t> environment_choice(const char* name, std::span<const std::string_view> allowed,
                                                            std::string_view remark = "");

/// Splits the variable's value at commas. Each word must be in `allowed`. Returns an empty list if the variable is
/// unset or empty.
/// @throws Error (kInvalidArgument) naming the first word that is not allowed.
[[nodiscard]] std::vector<std::string_view> environment_list(const char* name,
                                                             std::span<const std::string_view> allowed);

/// Returns the variable's value as a number of bytes, or nothing if the variable is unset or empty.
/// @throws Error (kInvalidArgument) if parse_bytes() does not accept the value.
[[nodiscard]] std::optional<std::uint64_t> environment_bytes(const char* name);

/// Parses a size such as "0", "4096", "512MiB", "2GiB" or "1.5 GB". The text is a decimal number with an optional unit:
/// B, KB, MB, GB, TB (powers of 1000) or KiB, MiB, GiB, TiB (powers of 1024), in upper or lower case. "unlimited" gives
/// kUnlimitedBytes. Returns nothing if `text` is invalid, or if the size is 2^63 bytes or more.
[[nodiscard]] std::optional<std::uint64_t> parse_bytes(std::string_view text);

/// Formats a size, for example "412.5 MiB". A size below 1 KiB gives a text like "17 bytes", and kUnlimitedBytes gives
/// "unlimited".
[[nodiscard]] std::string bytes_text(std::uint64_t bytes);

/// The result of parse_bytes() for the text "unlimited".
inline constexpr std::uint64_t kUnlimitedBytes = UINT64_MAX;

}  // namespace attend::core
