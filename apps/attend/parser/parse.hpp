// Turns the words of the command line into the options of one command. Parsing does no work and opens no file.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "options/options.hpp"

namespace attend::cli {

/// The output of --help or --version, to be printed on stdout.
struct Message {
  std::string text;
};

using Command = std::variant<GenerateOptions, RunOptions, BenchOptions, CompileOptions, LadderOptions, SweepOptions,
                             InfoOptions, ExplainOptions, RingOptions, CacheOptions, Message>;

/// Parses the words after the program's name.
/// @throws Error (kInvalidArgument) that names the flag, the given value and the allowed values.
[[nodiscard]] Command parse(const std::vector<std::string>& arguments);

}  // namespace attend::cli
