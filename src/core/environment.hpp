// Reads environment variables; no other code does. A variable that is unset or empty has no effect. A value that is not
// allowed throws a one-line error with the variable's name, the value and the allowed values.
//
// Callers read a variable in the call that first needs it, never while the library is loaded, because the exception
// needs a caller. docs/operations.md lists every variable.
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

/// Returns the index of the variable's value in `allowed`, or nothing if it is unset or empty.
/// @param remark  follows "allowed" in the error message, for example " on this processor"
/// @throws Error (kInvalidArgument): "ATTEND_CHECK: 'yes', allowed: 0, 1"
[[nodiscard]] std::optional<std::size_t> environment_choice(const char* name, std::span<const std::string_view> allowed,
                                                            std::string_view remark = "");

/// Returns the words of a comma-separated list, each one of `allowed`; empty if the variable is unset or empty.
/// @throws Error (kInvalidArgument) as environment_choice does, with the first word that is not allowed.
[[nodiscard]] std::vector<std::string_view> environment_list(const char* name,
                                                             std::span<const std::string_view> allowed);

/// Returns a number of bytes, or nothing if the variable is unset or empty.
/// @throws Error (kInvalidArgument) if parse_bytes() does not accept the value.
[[nodiscard]] std::optional<std::uint64_t> environment_bytes(const char* name);

/// Parses "0", "4096", "512MiB", "2GiB", "1.5 GB": a decimal number with one of B, KB, MB, GB, TB (powers of 1000) or
/// KiB, MiB, GiB, TiB (powers of 1024), in any case; "unlimited" is the largest number. Returns nothing if `text` is
/// invalid, or 2^63 bytes or more.
[[nodiscard]] std::optional<std::uint64_t> parse_bytes(std::string_view text);

/// Returns a text such as "412.5 MiB", below 1 KiB "17 bytes", or "unlimited".
[[nodiscard]] std::string bytes_text(std::uint64_t bytes);

/// Result of parse_bytes() for "unlimited".
inline constexpr std::uint64_t kUnlimitedBytes = UINT64_MAX;

}  // namespace attend::core
