// Copies from the memory of one GPU to that of another. Copy engines do them: no multiprocessor is taken.
#pragma once

#include <cstddef>

#include "cuda/driver/driver_types.hpp"

namespace attend::cuda {

/// Lets GPU `device` at the memory of GPU `peer` in this process, for good; asks the driver once for each pair.
/// False where the machine has no way between the two. Thread-safe.
/// @throws Error (kInvalidArgument) where there is no such GPU.
bool enable_peer_access(int device, int peer);

/// A place in the memory of a GPU.
struct DevicePlace {
  int device;
  DevicePointer data;
};

/// Copies when `stream` gets there, which is one of either GPU: directly where the stream's GPU has access to the
/// other's memory (enable_peer_access), else by way of the host's memory.
void copy_between(const DevicePlace& to, const DevicePlace& from, std::size_t bytes, StreamHandle stream);

}  // namespace attend::cuda
