// The flags of `attend sweep`.
#pragma once

#include <CLI/CLI.hpp>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "options/options.hpp"
#include "parser/problem_flags.hpp"

namespace attend::cli {

struct SweepFlags {
  ProblemFlags problem;
  std::size_t mode = 0;
  std::optional<double> max_seconds;
  std::vector<std::string> settings;  // values of --set; each has the form "block_n=64,96"

  void add(CLI::App& app, SweepOptions& options);
  /// @throws Error (kInvalidArgument) naming the flag, the given value and the allowed values.
  [[nodiscard]] SweepOptions finish(SweepOptions options) const;
};

}  // namespace attend::cli
