// The flags of `attend ring`, and those that `attend run --ring` has of them.
#pragma once

#include <CLI/CLI.hpp>
#include <cstddef>

#include "options/options.hpp"
#include "parser/problem_flags.hpp"

namespace attend::cli {

/// --algorithm: the value of a RingAlgorithm.
void add_algorithm(CLI::App& app, std::size_t& algorithm);

/// Refuses what `attend run` has and a ring has not.
/// @throws Error (kInvalidArgument) naming the flag and what is allowed.
void check_run_on_ring(const RunOptions& options);

struct RingFlags {
  ProblemFlags problem;
  std::size_t sharding = 0, algorithm = 0, mode = 0, over = 0, copy_engines = 0, device = 0;

  void add(CLI::App& app, RingOptions& options);
  /// @throws Error (kInvalidArgument) naming the flag, the value found and what is allowed.
  [[nodiscard]] RingOptions finish(RingOptions options) const;
};

}  // namespace attend::cli
