// The flags of `attend ring`. Some of them are also flags of `attend run --ring`.
#pragma once

#include <CLI/CLI.hpp>
#include <cstddef>

#include "options/options.hpp"
#include "parser/problem_flags.hpp"

namespace attend::cli {

/// Adds the flag --algorithm. Its value is stored as the index of a RingAlgorithm.
void add_algorithm(CLI::App& app, std::size_t& algorithm);

/// Checks that `attend run` has no option that a ring does not support.
/// @throws Error (kInvalidArgument) naming the flag and the allowed values.
void check_run_on_ring(const RunOptions& options);

struct RingFlags {
  ProblemFlags problem;
  std::size_t sharding = 0, algorithm = 0, mode = 0, over = 0, copy_engines = 0, device = 0;

  void add(CLI::App& app, RingOptions& options);
  /// @throws Error (kInvalidArgument) naming the flag, the given value and the allowed values.
  [[nodiscard]] RingOptions finish(RingOptions options) const;
};

}  // namespace attend::cli
