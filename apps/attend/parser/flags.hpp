// Functions that add flags to a command. They check each value when it is parsed, so that all errors have the same
//   form. For example: --batch_size: 'many', allowed integers from 1 to 2147483647
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace attend::cli {

constexpr std::int64_t kMaxRepeat = 1'000'000;
constexpr std::int64_t kMaxThreads = 4096;
constexpr std::int64_t kMaxRanks = 4096;

/// @throws Error (kInvalidArgument) naming `flag` if `text` is not an integer in [smallest, largest].
[[nodiscard]] std::int64_t parse_integer(std::string_view flag, std::string_view text, std::int64_t smallest,
                                         std::int64_t largest);

CLI::Option* add_integer(CLI::App& app, const std::string& flag, std::int64_t& target, std::int64_t smallest,
                         std::int64_t largest, const char* description);

/// Adds a flag whose value is any integer from 0 to 2^64 - 1.
CLI::Option* add_seed(CLI::App& app, const std::string& flag, std::uint64_t& target, const char* description);

/// Adds a flag whose value is a finite number in [smallest, largest]. If `open_end` is true, the value `largest` is not
/// allowed.
CLI::Option* add_real(CLI::App& app, const std::string& flag, std::optional<double>& target, double smallest,
                      double largest, bool open_end, const char* description);

/// Adds a flag whose value is one of `allowed`. Stores in `index` the position of the value in `allowed`.
CLI::Option* add_choice(CLI::App& app, const std::string& flag, std::size_t& index, std::vector<std::string> allowed,
                        const char* description);

/// Adds a flag whose value is a path. An empty path is not allowed.
CLI::Option* add_path(CLI::App& app, const std::string& flag, std::filesystem::path& target, const char* description);

}  // namespace attend::cli
