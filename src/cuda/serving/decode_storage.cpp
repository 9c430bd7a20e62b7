#include "cuda/serving/decode_storage.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "cuda/driver/driver.hpp"
#include "cuda/driver/stream.hpp"
#include "kernels/serving/decode_args.cuh"

namespace attend::cuda {
namespace {

enum class Purpose : std::uint8_t { kNodes, kLargeNodes, kQueries };

/// Identifies which calls may use a block of memory: either the calls on a stream, or the calls of a graph that was
/// captured on a stream.
struct Owner {
  Purpose purpose = Purpose::kNodes;
  DeviceIndex device = 0;
  unsigned long long stream = 0;  // the driver's ID of the stream, which is never reused
  std::uint64_t capture = 0;      // the driver's ID of the capture; 0 if the stream is not captured
  bool operator==(const Owner&) const = default;
};

struct Block {
  Owner owner;
  ContextHandle context = nullptr;
  DeviceMemory nodes, stack;
};

/// The blocks of memory that are kept between calls. No lock is held during a driver call, because some driver calls
/// wait for streams.
struct Registry {
  std::mutex mutex;
  std::list<std::shared_ptr<Block>> blocks;  // sorted by time of use, most recent first

  std::mutex orphan_mutex;
  std::vector<const Block*> orphaned;  // blocks that belong to a graph that has been destroyed
};

Registry& registry() {
  static auto* const kRegistry = new Registry();  // never destroyed, because the driver may shut down earlier
  return *kRegistry;
}

/// Marks a block as orphaned. The driver calls this function on one of its threads, so it must neither wait nor call
/// the driver.
void orphan(void* block) {
  const std::scoped_lock lock(registry().orphan_mutex);
  registry().orphaned.push_back(static_cast<const Block*>(block));
}

using SharedBlock = std::shared_ptr<Block>;
using Blocks = std::vector<SharedBlock>;

/// Returns whether a call still uses the block for rows of q. Such a block must not be given to another call until both
/// kernels of the first call are launched. Several threads may use the same stream, so the order of the stream does not
/// suffice.
bool is_in_use(const SharedBlock& block) {
  return block->owner.purpose == Purpose::kQueries && block.use_count() > 1;
}

/// Moves the blocks for which `is_wanted` returns true from the registry to `out`. The registry's mutex must be held.
template <class Predicate>
void take_out(Registry& all, Blocks& out, const Predicate& is_wanted) {
  std::erase_if(all.blocks, [&](const SharedBlock& block) {
    const bool found = !is_in_use(block) && is_wanted(*block);
    if (found) out.push_back(block);
    return found;
  });
}

void take_out_orphans(Registry& all, Blocks& out) {
  std::vector<const Block*> orphaned;
  {
    const std::scoped_lock lock(all.orphan_mutex);
    orphaned.swap(all.orphaned);
  }
  if (orphaned.empty()) return;
  take_out(all, out,
           [&](const Block& block) { return std::find(orphaned.begin(), orphaned.end(), &block) != orphaned.end(); });
}

/// Allocates memory and sets it to 0. The launch counter then starts at the first launch, and no node is marked as
/// written.
DeviceMemory fresh_nodes(std::size_t bytes) {
  DeviceMemory memory(bytes);
  const OwnStream stream;
  clear(memory.data(), bytes, stream.get(), "the storage of decode");
  synchronize(stream.get());
  return memory;
}

void make_graph_own(GraphHandle graph, Block& block) {
  constexpr unsigned kNoSynchronization = 1, kMove = 1;
  UserObjectHandle object = nullptr;
  check_call(driver().user_object_create(&object, &block, orphan, 1, kNoSynchronization), "cuUserObjectCreate",
             "attaching the storage of decode to a graph");
  check_call(driver().graph_retain_object(graph, object, 1, kMove), "cuGraphRetainUserObject",
             "attaching the storage of decode to a graph");
}

Owner owner_of(Purpose purpose, StreamHandle stream, GraphHandle& graph) {
  constexpr int kCapturing = 1;
  Owner owner = {.purpose = purpose};
  int status = 0;
  const void* dependencies = nullptr;
  std::size_t num_dependencies = 0;
  std::uint64_t capture = 0;
  check_call(driver().context_device(&owner.device), "cuCtxGetDevice", "querying the storage of decode");
  check_call(driver().stream_capture(stream, &status, &capture, &graph, &dependencies, &num_dependencies),
             "cuStreamGetCaptureInfo", "querying the storage of decode");
  // While a stream is captured, the driver does not return the ID of the stream. The handle suffices instead, because
  // the stream exists at least as long as the capture.
  if (status == kCapturing) {
    owner.capture = capture;
    owner.stream = reinterpret_cast<std::uintptr_t>(stream);
  } else {
    check_call(driver().stream_number(stream, &owner.stream), "cuStreamGetId", "querying the storage of decode");
  }
  return owner;
}

/// Returns a block of the owner that is large enough, or null. Moves blocks that are no longer needed to `unwanted`.
SharedBlock find(const Owner& owner, std::size_t node_bytes, std::size_t stack_bytes, Blocks& unwanted) {
  constexpr std::size_t kMostStreams = 32;  // largest number of streams whose storage is kept
  Registry& all = registry();
  const std::scoped_lock lock(all.mutex);
  take_out_orphans(all, unwanted);
  for (auto at = all.blocks.begin(); at != all.blocks.end(); ++at) {
    const Block& block = **at;
    if (block.owner != owner || block.nodes.bytes() < node_bytes || block.stack.bytes() < stack_bytes) continue;
    if (is_in_use(*at)) continue;
    all.blocks.splice(all.blocks.begin(), all.blocks, at);
    return all.blocks.front();
  }
  if (owner.capture != 0) return nullptr;
  take_out(all, unwanted, [&](const Block& block) { return block.owner == owner; });
  std::size_t of_streams = 0;
  take_out(all, unwanted, [&](const Block& block) {
    return block.owner.capture == 0 && block.owner.device == owner.device && block.owner.purpose == owner.purpose &&
           ++of_streams >= kMostStreams;
  });
  return nullptr;
}

/// Returns a block with at least `node_bytes` and `stack_bytes`. Allocates it if there is none.
SharedBlock block_for(Purpose purpose, std::size_t node_bytes, std::size_t stack_bytes, StreamHandle stream) {
  GraphHandle graph = nullptr;
  const Owner owner = owner_of(purpose, stream, graph);
  Blocks unwanted;
  if (SharedBlock found = find(owner, node_bytes, stack_bytes, unwanted); found != nullptr) {
    const RelaxedCapture relaxed;
    unwanted.clear();
    return found;
  }
  const RelaxedCapture relaxed;  // keeps the allocation out of a CUDA graph that this thread may be capturing
  unwanted.clear();              // waits for the launches that use these blocks, then frees the blocks
  const auto block = std::make_shared<Block>();
  block->owner = owner;
  block->nodes = fresh_nodes(node_bytes);
  block->stack = DeviceMemory(stack_bytes);
  if (owner.capture != 0) make_graph_own(graph, *block);
  Registry& all = registry();
  const std::scoped_lock lock(all.mutex);
  all.blocks.push_front(block);
  return block;
}

}  // namespace

DecodeStorage decode_storage(const DecodeGrid& grid, StreamHandle stream) {
  const Purpose purpose = grid.has_large_nodes ? Purpose::kLargeNodes : Purpose::kNodes;
  const SharedBlock block = block_for(purpose, grid.node_bytes, grid.stack_bytes, stream);
  return {reinterpret_cast<void*>(block->nodes.data()), reinterpret_cast<void*>(block->stack.data()), block};
}

QueryStorage query_storage(std::size_t bytes, StreamHandle stream) {
  constexpr std::size_t kLeast = std::size_t{1} << 20;
  if (bytes == 0) return {};
  const SharedBlock block = block_for(Purpose::kQueries, std::bit_ceil(std::max(bytes, kLeast)), 0, stream);
  return {reinterpret_cast<void*>(block->nodes.data()), block};
}

}  // namespace attend::cuda
