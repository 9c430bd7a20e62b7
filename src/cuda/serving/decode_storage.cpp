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

/// Identifies who may use a block of memory: calls on a stream, or calls of a graph that was captured on a stream.
struct Owner {
  Purpose purpose = Purpose::kNodes;
  DeviceIndex device = 0;
  unsigned long long stream = 0;  // the driver's stream ID, which is never reused
  std::uint64_t capture = 0;      // ID of the capture; 0: none
  bool operator==(const Owner&) const = default;
};

struct Block {
  Owner owner;
  ContextHandle context = nullptr;
  DeviceMemory nodes, stack;
};

/// The locks are never held during driver calls, because some of these wait for streams.
struct Registry {
  std::mutex mutex;
  std::list<std::shared_ptr<Block>> blocks;  // most recently used first

  std::mutex orphan_mutex;
  std::vector<const Block*> orphaned;  // blocks whose graph has been destroyed
};

Registry& registry() {
  static auto* const kRegistry = new Registry();  // never destroyed, because the driver may shut down earlier
  return *kRegistry;
}

/// Called by the driver on one of its threads, which must neither wait nor call the driver.
void orphan(void* block) {
  const std::scoped_lock lock(registry().orphan_mutex);
  registry().orphaned.push_back(static_cast<const Block*>(block));
}

using SharedBlock = std::shared_ptr<Block>;
using Blocks = std::vector<SharedBlock>;

/// Returns whether a call still uses the block for rows of q. Such a block belongs to one call until both kernels are
/// launched, because several threads may use one stream.
bool is_in_use(const SharedBlock& block) {
  return block->owner.purpose == Purpose::kQueries && block.use_count() > 1;
}

/// Moves matching blocks out of the registry, whose mutex must be held.
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

/// Allocates zeroed memory. The launch counter then starts at the first launch, and no packet of that launch is marked
/// as written.
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
  // During a capture the driver does not return the stream ID. The handle is sufficient, because the stream lives as
  // long as the capture.
  if (status == kCapturing) {
    owner.capture = capture;
    owner.stream = reinterpret_cast<std::uintptr_t>(stream);
  } else {
    check_call(driver().stream_number(stream, &owner.stream), "cuStreamGetId", "querying the storage of decode");
  }
  return owner;
}

/// Returns a block that is large enough, or null. Moves blocks that are no longer needed to `unwanted`.
SharedBlock find(const Owner& owner, std::size_t node_bytes, std::size_t stack_bytes, Blocks& unwanted) {
  constexpr std::size_t kMostStreams = 32;  // number of streams that keep their storage
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

/// Returns a block with at least `node_bytes` and `stack_bytes`.
SharedBlock block_for(Purpose purpose, std::size_t node_bytes, std::size_t stack_bytes, StreamHandle stream) {
  GraphHandle graph = nullptr;
  const Owner owner = owner_of(purpose, stream, graph);
  Blocks unwanted;
  if (SharedBlock found = find(owner, node_bytes, stack_bytes, unwanted); found != nullptr) {
    const RelaxedCapture relaxed;
    unwanted.clear();
    return found;
  }
  const RelaxedCapture relaxed;  // allocating is not part of a graph that this thread may be capturing
  unwanted.clear();              // freeing waits for launches that use the memory
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
