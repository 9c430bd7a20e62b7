// The library's device memory pools, one per GPU. Calls allocate their scratch memory from them.
#pragma once

#include "cuda/driver/driver_types.hpp"

namespace attend::cuda {

/// Bytes that a pool keeps after a synchronisation instead of returning them to the system. Allocating them again would
/// take longer than a small kernel.
constexpr std::uint64_t kPoolKeepsBytes = std::uint64_t{512} << 20;

/// Returns the pool of the device whose context is current. The first call creates it. It is never destroyed. The
/// device's default pool, which other libraries share, is not used.
[[nodiscard]] MemoryPoolHandle current_memory_pool();

/// Memory of a pool in bytes. Peaks count from the last reset, or from the creation of the pool.
struct PoolUsage {
  std::uint64_t used = 0;  ///< allocated and not yet freed
  std::uint64_t used_peak = 0;
  std::uint64_t reserved = 0;  ///< taken from the system, in granules chosen by the driver
  std::uint64_t reserved_peak = 0;
};

/// Returns the usage of the pool of GPU `device`, as counted by the driver. The count is exact to the byte and does not
/// wait for the GPU. All values are 0 before the first call on the GPU. Excludes memory of captured graphs and the
/// caller's Params::workspace. Thread-safe.
/// @throws Error (kInvalidArgument) if there is no such GPU; (kMissingHardware) without a driver.
[[nodiscard]] PoolUsage memory_pool_usage(int device);

/// Resets the peaks to the current usage. @throws Error like memory_pool_usage().
void reset_memory_pool_peaks(int device);

}  // namespace attend::cuda
