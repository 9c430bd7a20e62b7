// Device memory that decode keeps from call to call: nodes that the blocks of a launch leave for each other, and their
// stacks (kernels/serving/decode_args.cuh); and rows of q that append leaves for the decode of the same call.
#pragma once

#include <cstddef>
#include <memory>

#include "cuda/driver/driver_types.hpp"
#include "cuda/serving/decode_launch.hpp"

namespace attend::cuda {

struct DecodeStorage {
  void* nodes = nullptr;  ///< the counter of launches, then the nodes; zeroed when it was allocated
  void* stack = nullptr;
  std::shared_ptr<const void> lease;  ///< keeps both until the launch, whatever other threads ask for meanwhile
};

/// The storage for launches on `stream`, whose device is current: of at least the grid's bytes. Launches that may run
/// at the same time get different ones. A stream has its own. While a stream is captured, the graph has its own, and
/// gives it back when it is destroyed; so a graph may be replayed on any stream, but two graphs instantiated from one
/// may not run at the same time. Thread-safe.
[[nodiscard]] DecodeStorage decode_storage(const DecodeGrid& grid, StreamHandle stream);

/// The same for rows of q. The memory is nobody else's as long as the lease is there. An allocation in a captured graph
/// would be a node of its own, which takes microseconds.
struct QueryStorage {
  void* rows = nullptr;
  std::shared_ptr<const void> lease;
};
[[nodiscard]] QueryStorage query_storage(std::size_t bytes, StreamHandle stream);

}  // namespace attend::cuda
