// From the words of the command line to the options of one command. Parsing does no work and touches no file.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "options/options.hpp"

namespace attend::cli {

/// --help and --version: text for stdout, and nothing else to do.
struct Message {
  std::string text;
};

using Command = std::variant<GenerateOptions, RunOptions, BenchOptions, CompileOptions, LadderOptions, SweepOptions,
                             InfoOptions, ExplainOptions, RingOptions, CacheOptions, Message>;

/// Parses what follows the program's name.
/// @throws Error (kInvalidArgument) naming the flag, the value found and what is allowed.
[[nodiscard]] Command parse(const std::vector<std::string>& arguments);

}  // namespace attend::cli
