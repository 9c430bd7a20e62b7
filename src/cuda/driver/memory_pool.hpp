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

}  // namespace attend::cuda
