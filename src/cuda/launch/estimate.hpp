// How long a family expects to take: what "auto" compares. A model of two rates, not a prediction.
#pragma once

#include <cstdint>

#include "core/problem.hpp"
#include "cuda/driver/device.hpp"

namespace attend::cuda {

/// What a family's main kernel does on a GPU with `kModelMultiprocessors` that is full.
struct Rate {
  double tflops;                  ///< of visible scores, as benchmarks count them
  std::int64_t block_m;           ///< query rows of a block's tile; of a backward kernel that owns keys: keys
  std::int64_t blocks;            ///< of the main kernel
  int blocks_per_multiprocessor;  ///< at that speed
  std::size_t num_steps;          ///< kernels in a row
  bool has_whole_waves = false;   ///< a multiprocessor has one tile at a time: tiles that are alike come in waves
};

constexpr int kModelMultiprocessors = 132;  // H200

/// Seconds: whole tiles are paid, and so are multiprocessors that have none; or the bytes that have to be moved.
[[nodiscard]] double estimated_seconds(const core::Problem& p, const DeviceInfo& device, const Rate& rate);

}  // namespace attend::cuda
