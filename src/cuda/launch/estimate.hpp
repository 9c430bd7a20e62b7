// Estimated run times. "auto" chooses the backend with the lowest estimate. The model uses one rate for matrix products
// and one rate for memory traffic. Its purpose is to rank kernel families. It does not predict exact times.
#pragma once

#include <cstdint>

#include "core/problem.hpp"
#include "cuda/driver/device.hpp"

namespace attend::cuda {

/// Speed and launch shape of a family's main kernel. The speed holds for a fully occupied GPU with
/// `kModelMultiprocessors` multiprocessors.
struct Rate {
  /// TFLOP/s. Only operations for visible scores are counted, as in the benchmarks.
  double tflops;
  /// Number of query rows that a block processes at a time. If the blocks of a backward kernel own keys, this is the
  /// number of keys that a block owns.
  std::int64_t block_m;
  /// Number of blocks of the main kernel.
  std::int64_t blocks;
  /// Number of resident blocks per multiprocessor when the kernel reaches `tflops`.
  int blocks_per_multiprocessor;
  /// Number of kernel launches. They run one after another.
  std::size_t num_steps;
  /// Whether a multiprocessor processes one tile at a time. If it does and all tiles have the same length, the run time
  /// is a multiple of the time of one wave of blocks.
  bool has_whole_waves = false;
};

constexpr int kModelMultiprocessors = 132;  // H200

/// Returns the estimated time in seconds: the larger of compute time and memory time, plus launch overhead. The compute
/// time includes padding rows of partial tiles and idle multiprocessors.
[[nodiscard]] double estimated_seconds(const core::Problem& p, const DeviceInfo& device, const Rate& rate);

}  // namespace attend::cuda
