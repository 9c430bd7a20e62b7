// Copies between the memories of two GPUs. The copy engines of the GPUs perform these copies, so no multiprocessor is
// occupied.
#pragma once

#include <cstddef>

#include "cuda/driver/driver_types.hpp"

namespace attend::cuda {

/// Gives GPU `device` access to the memory of GPU `peer` until the process ends. Returns false if the machine does not
/// support this access. The driver is queried once for each pair. Thread-safe.
/// @throws Error (kInvalidArgument) if one of the GPUs does not exist.
bool enable_peer_access(int device, int peer);

/// An address in the memory of a GPU.
struct DevicePlace {
  int device;
  DevicePointer data;
};

/// Copies memory between two GPUs, in the order of `stream`, which belongs to either GPU. The copy is direct if the
/// stream's GPU has access to the memory of the other GPU (enable_peer_access). Otherwise the driver copies through
/// host memory.
void copy_between(const DevicePlace& to, const DevicePlace& from, std::size_t bytes, StreamHandle stream);

}  // namespace attend::cuda
