// GPU memory that decode keeps between calls. It holds the nodes (partial results) that the blocks of a launch
// exchange, and their stacks (kernels/serving/decode_args.cuh). It also holds rows of q that append passes to the
// decode kernel of the same call.
#pragma once

#include <cstddef>
#include <memory>

#include "cuda/driver/driver_types.hpp"
#include "cuda/serving/decode_launch.hpp"

namespace attend::cuda {

struct DecodeStorage {
  void* nodes = nullptr;  ///< the launch counter, followed by the nodes; the memory is zeroed when it is allocated
  void* stack = nullptr;
  /// Keeps `nodes` and `stack` allocated until the kernels are launched, even if other threads request storage
  /// meanwhile.
  std::shared_ptr<const void> lease;
};

/// Returns storage for launches on `stream`, with at least the sizes in `grid`. The GPU's context must be current. Each
/// stream has separate storage, because launches on different streams can run at the same time. If the stream is being
/// captured, the captured graph gets separate storage, which is freed when the graph is destroyed. The graph can
/// therefore be replayed on any stream. But if two executable graphs are made from one captured graph, they must not
/// run at the same time. Thread-safe.
[[nodiscard]] DecodeStorage decode_storage(const DecodeGrid& grid, StreamHandle stream);

/// Memory for rows of q. No other call uses it while the lease exists. It is kept between calls instead of being
/// allocated, because an allocation in a captured graph is a separate node and takes microseconds.
struct QueryStorage {
  void* rows = nullptr;
  std::shared_ptr<const void> lease;
};
[[nodiscard]] QueryStorage query_storage(std::size_t bytes, StreamHandle stream);

}  // namespace attend::cuda
