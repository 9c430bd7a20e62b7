// Device memory that decode keeps between calls. It holds the nodes that blocks of a launch exchange, their stacks
// (kernels/serving/decode_args.cuh), and rows of q that append passes to the decode of the same call.
#pragma once

#include <cstddef>
#include <memory>

#include "cuda/driver/driver_types.hpp"
#include "cuda/serving/decode_launch.hpp"

namespace attend::cuda {

struct DecodeStorage {
  void* nodes = nullptr;  ///< the launch counter, then the nodes; zeroed at allocation
  void* stack = nullptr;
  /// Keeps both alive until the launch, even if other threads request storage in the meantime.
  std::shared_ptr<const void> lease;
};

/// Returns storage for launches on `stream`, with at least the bytes of the grid. The device must be current. Launches
/// that can run at the same time get different storage, because each stream has its own. While a stream is captured,
/// the graph gets its own storage, which is freed when the graph is destroyed. A graph can therefore be replayed on any
/// stream, but two executable graphs of one graph must not run at the same time. Thread-safe.
[[nodiscard]] DecodeStorage decode_storage(const DecodeGrid& grid, StreamHandle stream);

/// Storage for rows of q. Nobody else uses the memory while the lease exists. An allocation in a captured graph would
/// be a separate node and take microseconds, so the memory is kept instead.
struct QueryStorage {
  void* rows = nullptr;
  std::shared_ptr<const void> lease;
};
[[nodiscard]] QueryStorage query_storage(std::size_t bytes, StreamHandle stream);

}  // namespace attend::cuda
