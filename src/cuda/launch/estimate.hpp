// Estimated run times, which "auto" compares. The model has one rate for compute and one for memory. It ranks families
// and does not predict exact times.
#pragma once

#include <cstdint>

#include "core/problem.hpp"
#include "cuda/driver/device.hpp"

namespace attend::cuda {

/// Speed of a family's main kernel on a fully occupied GPU with `kModelMultiprocessors` multiprocessors.
struct Rate {
  /// Rate over visible scores, counted as in the benchmarks.
  double tflops;
  /// Query rows per tile of a block. For a backward kernel whose blocks own keys: keys per tile.
  std::int64_t block_m;
  /// Blocks of the main kernel.
  std::int64_t blocks;
  /// Resident blocks at that rate.
  int blocks_per_multiprocessor;
  /// Number of kernels launched one after another.
  std::size_t num_steps;
  /// If true, each multiprocessor holds one tile at a time, so tiles of equal length run in full waves.
  bool has_whole_waves = false;
};

constexpr int kModelMultiprocessors = 132;  // H200

/// Returns the estimate in seconds: the larger of compute time and memory time. Compute time counts padded rows of
/// partial tiles and idle multiprocessors.
[[nodiscard]] double estimated_seconds(const core::Problem& p, const DeviceInfo& device, const Rate& rate);

}  // namespace attend::cuda
