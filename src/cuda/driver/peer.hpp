// Copies between the memories of two GPUs. Copy engines perform them, without occupying multiprocessors.
#pragma once

#include <cstddef>

#include "cuda/driver/driver_types.hpp"

namespace attend::cuda {

/// Gives GPU `device` access to the memory of GPU `peer` for the life of the process. Queries the driver once per pair.
/// Returns false if the machine does not support access between the two. Thread-safe.
/// @throws Error (kInvalidArgument) if there is no such GPU.
bool enable_peer_access(int device, int peer);

/// An address in the memory of a GPU.
struct DevicePlace {
  int device;
  DevicePointer data;
};

/// Copies in the order of `stream`, a stream of either GPU. The copy is direct if the stream's GPU has access to the
/// other memory (enable_peer_access). Otherwise it goes through host memory.
void copy_between(const DevicePlace& to, const DevicePlace& from, std::size_t bytes, StreamHandle stream);

}  // namespace attend::cuda
