// Device memory that decode keeps from call to call: nodes that the blocks of a launch leave for each other, and their
// stacks (kernels/serving/decode_args.cuh).
#pragma once

#include <cstddef>
#include <memory>

#include "cuda/driver/driver_types.hpp"

namespace attend::cuda {

struct DecodeStorage {
  void* nodes = nullptr;  ///< the counter of launches, then the nodes; zeroed when it was allocated
  void* stack = nullptr;
  std::shared_ptr<const void> lease;  ///< keeps both until the launch, whatever other threads ask for meanwhile
};

/// The storage for launches on `stream`, whose device is current: of at least so many bytes each. Launches that may run
/// at the same time get different ones. A stream has its own. While a stream is captured, the graph has its own, and
/// gives it back when it is destroyed; so a graph may be replayed on any stream, but two graphs instantiated from one
/// may not run at the same time. Thread-safe.
[[nodiscard]] DecodeStorage decode_storage(std::size_t node_bytes, std::size_t stack_bytes, StreamHandle stream);

}  // namespace attend::cuda
