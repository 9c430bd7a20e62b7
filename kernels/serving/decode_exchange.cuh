// Exchanges tree nodes between blocks if several blocks share an item. One block writes a node. The block that computes
// the end of the item reads the node. The reader always has a higher block number than the writer, so a block never
// waits for one that may start later.
//
// A node is stored in 16-byte packets, each written and read in one access. A packet consists of three floats and the
// launch number. A thread reads the packets that the thread of the same number wrote. The launch number shows that the
// packet has arrived. So the exchange needs no fence, counter or barrier, and the memory need not be cleared. The
// writer's relaxed stores go to L2. Asynchronous copies read the packets from L2 into shared memory, and are repeated
// until the launch number matches.
// Source: the LL protocol of NCCL, whose packets also contain flags
//
// This code runs once in a block, before its instructions are in any cache. So a short loop is faster than long
// unrolled code.
#pragma once

#include "../isa/cp_async.cuh"
#include "decode_context.cuh"
#include "decode_share.cuh"

namespace attend {

// Stores 16 bytes in one access. PTX ISA, memory consistency model: accesses of 128 bits are single-copy atomic.
__device__ __forceinline__ void store_packet(void* to, float x, float y, float z, uint32 tag) {
  const uint64 low = static_cast<uint64>(__float_as_uint(y)) << 32 | __float_as_uint(x);
  const uint64 high = static_cast<uint64>(tag) << 32 | __float_as_uint(z);
  asm volatile(
      "{\n.reg .b128 packet;\nmov.b128 packet, {%1, %2};\nst.relaxed.gpu.global.b128 [%0], packet;\n}\n" ::"l"(to),
      "l"(low), "l"(high)
      : "memory");
}
// Returns the number of this launch, read from the counter in the storage.
[[nodiscard]] __device__ __forceinline__ uint32 launch_number(const DecodeArgs& args) {
  return static_cast<const volatile uint32*>(args.storage)[1];
}

// Returns the number of blocks of the previous launch that have ended. Returns 0 if no block or every block has ended.
// The two launches use the same storage. Each block changes the counter's low word when it ends. Block 0 subtracts
// gridDim.x - 1 from the low word, and every other block adds 1 to it. So the low word is negative from the end of
// block 0 until the last block ends.
[[nodiscard]] __device__ __forceinline__ int ended_blocks(const DecodeArgs& args) {
  const int count = static_cast<int>(static_cast<const volatile uint32*>(args.storage)[0]);
  return count < 0 ? count + static_cast<int>(gridDim.x) : count;
}

// Counts the block as ended. One thread of every block calls it, after the block has read all of its data.
__device__ __forceinline__ void end_launch(const DecodeArgs& args) {
  const uint64 share = blockIdx.x == 0 ? kDecodeLaunch - (gridDim.x - 1) : 1;
  atomicAdd(static_cast<unsigned long long*>(args.storage), share);
}

// An entry in the list of nodes that a block merges.
struct ListedNode {
  uint32 place;  // number of the node's slot, counted over all blocks
  short level;   // level in the tree
  short merges;  // number of stack nodes that merge with this node, at its level and at the levels above
};
static_assert(sizeof(ListedNode) == kDecodeListedBytes);

template <class Config>
struct DecodeNodes {
  using Sizes = DecodeSizes<Config>;
  using Share = DecodeShareOf<Config>;
  static constexpr int kPackets = decode_node_packets(Sizes::kTile);
  static constexpr int kBytes = decode_node_bytes(Sizes::kTile);

  // Number of nodes that fit into shared memory at once.
  static constexpr int kMostGathered =
      decode_ring_bytes(Sizes::kTile) / kBytes < 16 ? decode_ring_bytes(Sizes::kTile) / kBytes : 16;

  const DecodeArgs& args;
  uint32 launch;

  __device__ __forceinline__ void write(int slot, const DecodeState<Config>& state) const {
    const uint32 place = blockIdx.x * kDecodeNodesOfBlock + slot;
    const int thread = state_thread<Config>();
    if constexpr (Config::kHalfRows) {
      write_share(at(place, thread), Share::of(state, 0));
      write_share(at(place, thread + DecodeShareFor<Config>::kSecondRow), Share::of(state, 1));
    } else {
      write_share(at(place, thread), state);
    }
  }

  // Copies up to kMostGathered nodes into shared memory, one after another, and waits until the thread's shares have
  // arrived. All copies are started together, so that they overlap.
  //
  // The waiting loop checks kAtOnce nodes at a time, because the check of each node is a chain of dependent
  // instructions.
  __device__ __forceinline__ void gather(const ListedNode* list, int count, char* shared) const {
    constexpr int kAtOnce = kPackets <= 4 ? 4 : 1;
    const char* const base = at(0, state_thread<Config>());
    int begin = 0;  // nodes before this one have arrived
    while (begin < count) {
#pragma unroll 1
      for (int first = begin; first < count; first += kAtOnce) {
        const char* from[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          from[i] = base + static_cast<uint64>(list[min(first + i, count - 1)].place) * kBytes;
        }
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          if (first + i < count) copy(from[i], shared, first + i);
        }
      }
      cp_async_commit();
      cp_async_wait<0>();
      bool are_here = true;
      while (are_here && begin < count) {
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) are_here &= is_here(shared, min(begin + i, count - 1));
        if (are_here) begin += kAtOnce;
      }
    }
  }
  // Returns the thread's share of a gathered node.
  [[nodiscard]] static __device__ __forceinline__ Share gathered(const ListedNode*, char* shared, int node) {
    Share share = Share::empty();
#pragma unroll
    for (int i = 0; i < kPackets; ++i) {
      const float4 x = packet(shared, node, i);
      share.value[3 * i] = x.x;
      if (3 * i + 1 < Share::kFloats) share.value[3 * i + 1] = x.y;
      if (3 * i + 2 < Share::kFloats) share.value[3 * i + 2] = x.z;
    }
    return share;
  }
  // Overwrites the thread's share of a gathered node. The tag becomes 0, which no launch uses.
  static __device__ __forceinline__ void put(char* shared, int node, const Share& share) {
#pragma unroll
    for (int i = 0; i < kPackets; ++i) packet(shared, node, i) = packet_of(share, i);
  }

 private:
  static constexpr int kPacketBytes = Sizes::kStateThreads * 16;  // distance of two consecutive packets of a thread
  static constexpr int kUnrolled = kPackets <= 8 ? kPackets : 4;

  // Returns the launch number with the top bit set. Packets that were never written have a tag of 0.
  [[nodiscard]] __device__ __forceinline__ uint32 tag() const {
    return launch | 0x80000000u;
  }
  [[nodiscard]] __device__ __forceinline__ char* at(uint32 place, int thread) const {
    return static_cast<char*>(args.storage) + kDecodeHeaderBytes + static_cast<int64>(place) * kBytes + thread * 16;
  }
  [[nodiscard]] static __device__ __forceinline__ float4 packet_of(const Share& share, int i) {
    const float z = 3 * i + 2 < Share::kFloats ? share.value[min(3 * i + 2, Share::kFloats - 1)] : 0.0f;
    const float y = 3 * i + 1 < Share::kFloats ? share.value[min(3 * i + 1, Share::kFloats - 1)] : 0.0f;
    return {share.value[3 * i], y, z, 0.0f};
  }
  __device__ __forceinline__ void write_share(char* to, const Share& share) const {
#pragma unroll
    for (int i = 0; i < kPackets; ++i) {
      const float4 x = packet_of(share, i);
      store_packet(to + i * kPacketBytes, x.x, x.y, x.z, tag());
    }
  }
  static __device__ __forceinline__ void copy(const char* from, char* shared, int node) {
    const uint32 to = smem_address(shared) + state_thread<Config>() * 16 + node * kBytes;
#pragma unroll(kUnrolled)
    for (int i = 0; i < kPackets; ++i) cp_async_16(to + i * kPacketBytes, from + i * kPacketBytes);
  }
  [[nodiscard]] __device__ __forceinline__ bool is_here(char* shared, int node) const {
    uint32 wrong = 0;
#pragma unroll(kUnrolled)
    for (int i = 0; i < kPackets; ++i) wrong |= __float_as_uint(packet(shared, node, i).w) ^ tag();
    return wrong == 0;
  }
  [[nodiscard]] static __device__ __forceinline__ float4& packet(char* shared, int node, int i) {
    return reinterpret_cast<float4*>(shared + node * kBytes + i * kPacketBytes)[state_thread<Config>()];
  }
};

// Calls visit(number, begin, level) in order for the nodes of the units [begin, end) of an item. Returns the number of
// nodes. The first node of an item may begin before the item's first unit. This is correct, because the rows see no key
// between the start of the node and the first unit.
template <int kLeafShift, class Visit>
__device__ __forceinline__ int for_each_node(int begin, int end, bool begins_item, bool ends_item, const Visit& visit) {
  int count = 0;
  for (int64 at = begins_item ? 0 : begin; begin < end && at < end;) {
    const int level = node_level(static_cast<int>(at), end, ends_item, kLeafShift);
    const int64 next = at + (1LL << level);
    if (next > begin) visit(count++, static_cast<int>(at), level);
    at = next;
  }
  return count;
}

// Returns the slot of node `number` among the nodes that the block writes for an item.
[[nodiscard]] __device__ __forceinline__ int slot_of(bool begins_item, int number) {
  return begins_item ? kDecodeInnerNodes + number : number;
}

// Returns how many stack nodes a new node merges with. It merges with its left neighbour, then with the left neighbour
// of the merged node, and so on. All nodes of the item must be pushed in order. The item begins with unit `first`.
[[nodiscard]] __device__ __forceinline__ int merges_at(int begin, int level, int first) {
  int count = 0;
  for (; (begin >> level & 1) != 0 && begin > first; ++level, ++count) begin -= 1 << level;
  return count;
}

// Returns the block that computes an item's first unit.
template <class Schedule>
[[nodiscard]] __device__ __forceinline__ int first_block_of(const Schedule& schedule,
                                                            const typename Schedule::Item& item) {
  return static_cast<int>(Schedule::Numbers::divide(item.first, schedule.share));
}

// Lists the nodes that up to 32 blocks have for an item. These blocks have the numbers from `first` on, up to the
// number of this block. One warp calls the function. Returns the number of nodes.
template <class Schedule>
__device__ __forceinline__ int list_nodes(const Schedule& schedule, const typename Schedule::Item& item, int first,
                                          ListedNode* list) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  const int block = first + lane;
  int begin = 0, end = 0;
  if (block <= static_cast<int>(blockIdx.x)) {
    const typename Schedule::Number from = block * schedule.share, to = from + schedule.share;
    begin = item.span.begin_unit + (from <= item.first ? 0 : schedule.snapped(item, from));
    end = to >= item.end() ? item.span.end_unit : item.span.begin_unit + schedule.snapped(item, to);
    begin = min(begin, item.span.end_unit);
    end = min(end, item.span.end_unit);
  }
  const bool begins = begin == item.span.begin_unit, ends = end == item.span.end_unit;
  int count = 0, before = 0, total = 0;
#pragma unroll 1
  for (int round = 0; round < 2; ++round) {
    const bool writes = round == 1;  // the first round only counts the nodes
    if (writes) {
      before = count;
#pragma unroll
      for (int distance = 1; distance < kWarpThreads; distance *= 2) {
        const int other = __shfl_up_sync(kAllLanes, before, distance);
        if (lane >= distance) before += other;
      }
      total = __shfl_sync(kAllLanes, before, kWarpThreads - 1);
      before -= count;
    }
    count = for_each_node<Schedule::kLeafShift>(begin, end, begins, ends, [&](int number, int at, int level) {
      if (!writes) return;
      list[before + number] = {static_cast<uint32>(block * kDecodeNodesOfBlock + slot_of(begins, number)),
                               static_cast<short>(level),
                               static_cast<short>(merges_at(at, level, item.span.begin_unit))};
    });
  }
  __syncwarp();  // waits until all lanes have written the list
  return total;
}

// Lists all nodes of the item that ends in this block, 32 blocks at a time. The computing warps read the list. One
// loading warp calls this function.
template <class Config>
__device__ __forceinline__ void list_all(const DecodeContext<Config>& block) {
  constexpr DecodeSmem kSmem = DecodeSizes<Config>::kSmem;
  const int last = static_cast<int>(blockIdx.x);
  ListedNode* list = reinterpret_cast<ListedNode*>(block.smem + kSmem.list);
  block.cursor.restart(block.first);
#pragma unroll 1
  for (int first = first_block_of(block.schedule, block.cursor.item); first <= last; first += kWarpThreads) {
    const int count = list_nodes(block.schedule, block.cursor.item, first, list);
    if (threadIdx.x % kWarpThreads == 0) block.told().count = count;
    __syncwarp();                                        // waits until the count is written; the warp may then arrive
                                                         // at the barrier
    barrier_arrive<kListThreads<Config>>(kListBarrier);  // the computing warps may read the list
    // Waits until the computing warps have read the list, which may then be overwritten.
    if (first + kWarpThreads <= last) barrier_wait<kListThreads<Config>>(kListReadBarrier);
  }
}

}  // namespace attend
