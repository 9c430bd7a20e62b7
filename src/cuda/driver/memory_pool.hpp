// The library's pools of GPU memory, one for each GPU. Each call allocates its scratch memory from the pool of its GPU.
#pragma once

#include "cuda/driver/driver_types.hpp"

namespace attend::cuda {

/// Number of bytes that a pool keeps at a synchronisation. The driver returns only memory above this limit to the
/// system. Allocating the memory again would take longer than a small kernel runs.
constexpr std::uint64_t kPoolKeepsBytes = std::uint64_t{512} << 20;

/// Returns the library's pool on the GPU whose context is current. The first call creates the pool, which is never
/// destroyed. The library does not use the GPU's default pool, because other libraries share it.
[[nodiscard]] MemoryPoolHandle current_memory_pool();

/// Usage of a pool in bytes. Peaks are measured since the last reset, or since the pool was created.
struct PoolUsage {
  std::uint64_t used = 0;  ///< allocated and not yet freed
  std::uint64_t used_peak = 0;
  std::uint64_t reserved = 0;  ///< memory that the driver has reserved for the pool, in units that the driver chooses
  std::uint64_t reserved_peak = 0;
};

/// Returns the usage of the pool of GPU `device`. The driver counts it exactly, and the query does not wait for the
/// GPU. All values are 0 before the library first uses the GPU. Memory of captured graphs and Params::workspace of the
/// caller are not included. Thread-safe.
/// @throws Error (kInvalidArgument) if there is no such GPU; (kMissingHardware) if there is no driver.
[[nodiscard]] PoolUsage memory_pool_usage(int device);

/// Resets the peaks to the current usage. @throws Error like memory_pool_usage().
void reset_memory_pool_peaks(int device);

}  // namespace attend::cuda
