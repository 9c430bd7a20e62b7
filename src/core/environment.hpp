// Environment variables are read here and nowhere else, by one rule: a variable that is unset or empty says nothing,
// and a value that is not allowed is refused in one line with the variable's name, the value and what is allowed.
//
// Callers read a variable in the call that first needs it, never while the library is loaded: the refusal is an
// exception and needs a caller. docs/operations.md lists every variable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace attend::core {

/// The value of an environment variable; null where it is unset or empty.
[[nodiscard]] const char* environment(const char* name) noexcept;

/// The position of the variable's value in `allowed`, nothing where the variable says nothing.
/// @param remark  follows "allowed" in the refusal, for example " on this processor"
/// @throws Error (kInvalidArgument): "ATTEND_CHECK: 'yes', allowed: 0, 1"
[[nodiscard]] std::optional<std::size_t> environment_choice(const char* name, std::span<const std::string_view> allowed,
                                                            std::string_view remark = "");

/// The words of a comma-separated list, each one of `allowed`; empty where the variable says nothing.
/// @throws Error (kInvalidArgument) as environment_choice does, with the first word that is not allowed.
[[nodiscard]] std::vector<std::string_view> environment_list(const char* name,
                                                             std::span<const std::string_view> allowed);

/// A number of bytes, nothing where the variable says nothing.
/// @throws Error (kInvalidArgument) where parse_bytes() knows no such size.
[[nodiscard]] std::optional<std::uint64_t> environment_bytes(const char* name);

/// "0", "4096", "512MiB", "2GiB", "1.5 GB": a decimal number with one of B, KB, MB, GB, TB (powers of 1000) or KiB,
/// MiB, GiB, TiB (powers of 1024), in any case; "unlimited" is the largest number. Nothing where `text` is no such
/// size, or one of 2^63 bytes and more.
[[nodiscard]] std::optional<std::uint64_t> parse_bytes(std::string_view text);

/// "412.5 MiB"; below 1 KiB "17 bytes"; "unlimited".
[[nodiscard]] std::string bytes_text(std::uint64_t bytes);

/// What parse_bytes() gives for "unlimited".
inline constexpr std::uint64_t kUnlimitedBytes = UINT64_MAX;

}  // namespace attend::core
