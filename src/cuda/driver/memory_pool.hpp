// The library's own pool of device memory, one for each GPU: what a call needs for itself is taken from here.
#pragma once

#include "cuda/driver/driver_types.hpp"

namespace attend::cuda {

/// Bytes that a pool keeps after a synchronisation instead of giving them back to the system. Getting them again would
/// cost more than a small kernel takes.
constexpr std::uint64_t kPoolKeepsBytes = std::uint64_t{512} << 20;

/// The pool of the device whose context is current. Made at first use, never destroyed. The device's default pool,
/// which other libraries share, is left alone.
[[nodiscard]] MemoryPoolHandle current_memory_pool();

/// What a pool holds, in bytes, and the most it held since the peaks were reset, or since it was made.
struct PoolUsage {
  std::uint64_t used = 0;  ///< handed out and not yet given back: what calls need
  std::uint64_t used_peak = 0;
  std::uint64_t reserved = 0;  ///< taken from the system, in steps of the driver's own
  std::uint64_t reserved_peak = 0;
};

/// Of the pool of GPU `device`, by the driver's own count: to the byte, and without waiting for the GPU. All zero
/// before the first call there. Memory of captured graphs is not the pool's, nor what a caller brought as
/// Params::workspace. Thread-safe.
/// @throws Error (kInvalidArgument) where there is no such GPU; (kMissingHardware) without a driver.
[[nodiscard]] PoolUsage memory_pool_usage(int device);

/// The peaks start anew from what is used and reserved now. @throws Error likewise.
void reset_memory_pool_peaks(int device);

}  // namespace attend::cuda
