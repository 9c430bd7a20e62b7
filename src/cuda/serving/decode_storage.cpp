#include "cuda/serving/decode_storage.hpp"

#include <cstdint>
#include <list>
#include <mutex>
#include <vector>

#include "cuda/driver/driver.hpp"
#include "cuda/driver/stream.hpp"
#include "kernels/serving/decode_args.cuh"

namespace attend::cuda {
namespace {

/// Who may use a block of memory: the calls on a stream, or those of a graph that were captured on a stream.
struct Owner {
  DeviceIndex device = 0;
  unsigned long long stream = 0;  // the driver's number, which no other stream gets
  std::uint64_t capture = 0;      // 0: none
  bool operator==(const Owner&) const = default;
};

struct Block {
  Owner owner;
  ContextHandle context = nullptr;
  DeviceMemory nodes, stack;
};

struct Registry {
  std::mutex mutex;
  std::list<Block> blocks;             // the last used first
  std::vector<const Block*> orphaned;  // whose graph is gone
};

Registry& registry() {
  static auto* const kRegistry = new Registry();  // never destroyed: the driver may be gone before
  return *kRegistry;
}

/// Called by the driver, which allows no call of its own here.
void orphan(void* block) {
  const std::scoped_lock lock(registry().mutex);
  registry().orphaned.push_back(static_cast<const Block*>(block));
}

void free_orphans(Registry& all) {
  if (all.orphaned.empty()) return;
  const RelaxedCapture relaxed;
  for (const Block* block : all.orphaned) {
    all.blocks.remove_if([&](const Block& other) { return &other == block; });
  }
  all.orphaned.clear();
}

/// Zeroed: the counter is at the first launch, and no packet of it has been written.
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
             "tying the storage of decode to a graph");
  check_call(driver().graph_retain_object(graph, object, 1, kMove), "cuGraphRetainUserObject",
             "tying the storage of decode to a graph");
}

}  // namespace

DecodeStorage decode_storage(std::size_t node_bytes, std::size_t stack_bytes, StreamHandle stream) {
  constexpr int kCapturing = 1;
  constexpr std::size_t kMostStreams = 32;  // that keep their storage
  Owner owner;
  int status = 0;
  GraphHandle graph = nullptr;
  const void* dependencies = nullptr;
  std::size_t num_dependencies = 0;
  std::uint64_t capture = 0;
  check_call(driver().context_device(&owner.device), "cuCtxGetDevice", "looking for the storage of decode");
  check_call(driver().stream_capture(stream, &status, &capture, &graph, &dependencies, &num_dependencies),
             "cuStreamGetCaptureInfo", "looking for the storage of decode");
  const bool captures = status == kCapturing;
  if (captures) {  // then the driver does not tell the number, and the handle will do: the stream lives as long
    owner.capture = capture;
    owner.stream = reinterpret_cast<std::uintptr_t>(stream);
  } else {
    check_call(driver().stream_number(stream, &owner.stream), "cuStreamGetId", "looking for the storage of decode");
  }

  Registry& all = registry();
  const std::scoped_lock lock(all.mutex);
  free_orphans(all);
  for (auto block = all.blocks.begin(); block != all.blocks.end(); ++block) {
    if (block->owner != owner || block->nodes.bytes() < node_bytes || block->stack.bytes() < stack_bytes) continue;
    all.blocks.splice(all.blocks.begin(), all.blocks, block);
    return {reinterpret_cast<void*>(block->nodes.data()), reinterpret_cast<void*>(block->stack.data())};
  }
  const RelaxedCapture relaxed;  // allocating is no part of a graph that this thread may be capturing
  if (!captures) {               // a smaller one is of no use any more; freeing it waits for those that use it
    all.blocks.remove_if([&](const Block& block) { return block.owner == owner; });
    std::size_t of_streams = 0;
    all.blocks.remove_if([&](const Block& block) {
      return block.owner.capture == 0 && block.owner.device == owner.device && ++of_streams >= kMostStreams;
    });
  }
  Block& block = all.blocks.emplace_front();
  block.owner = owner;
  block.nodes = fresh_nodes(node_bytes);
  block.stack = DeviceMemory(stack_bytes);
  if (captures) make_graph_own(graph, block);
  return {reinterpret_cast<void*>(block.nodes.data()), reinterpret_cast<void*>(block.stack.data())};
}

}  // namespace attend::cuda
