// Converts the words of the command line to the options of one command. Parsing opens no file.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "options/options.hpp"

namespace attend::cli {

/// The text of --help or --version, which is printed on stdout.
struct Message {
  std::string text;
};

using Command = std::variant<GenerateOptions, RunOptions, BenchOptions, CompileOptions, LadderOptions, SweepOptions,
                             InfoOptions, ExplainOptions, RingOptions, CacheOptions, Message>;

/// Parses the words that follow the program's name.
/// @throws Error (kInvalidArgument) naming the flag, the given value and the allowed values.
[[nodiscard]] Command parse(const std::vector<std::string>& arguments);

}  // namespace attend::cli
