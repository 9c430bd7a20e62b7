// Nodes of the tree that blocks leave for each other, where an item is spread over several: written by one block, and
// read by the block that has the item's end, whose number is higher. It never waits for a block that may start later.
//
// A node lies in packets of 16 bytes, written and read as one: three floats and the number of the launch. A thread
// reads what the thread of the same number wrote, and knows by the number that it is there. So there is no fence, no
// counter and no barrier between the two, and nothing to be cleared.
// Source: the idea of packets with flags is NCCL's protocol LL
#pragma once

#include "decode_config.cuh"
#include "decode_piece.cuh"
#include "decode_state.cuh"

namespace attend {

// PTX ISA, memory consistency model: accesses of 128 bits are single-copy atomic.
__device__ __forceinline__ void store_packet(void* to, float x, float y, float z, uint32 tag) {
  const uint64 low = static_cast<uint64>(__float_as_uint(y)) << 32 | __float_as_uint(x);
  const uint64 high = static_cast<uint64>(tag) << 32 | __float_as_uint(z);
  asm volatile(
      "{\n.reg .b128 packet;\nmov.b128 packet, {%1, %2};\nst.relaxed.gpu.global.b128 [%0], packet;\n}\n" ::"l"(to),
      "l"(low), "l"(high)
      : "memory");
}
struct Packet {
  uint64 low, high;
  [[nodiscard]] __device__ __forceinline__ uint32 tag() const { return static_cast<uint32>(high >> 32); }
};
[[nodiscard]] __device__ __forceinline__ Packet load_packet(const void* from) {
  Packet p;
  asm volatile("{\n.reg .b128 packet;\nld.relaxed.gpu.global.b128 packet, [%2];\nmov.b128 {%0, %1}, packet;\n}\n"
               : "=l"(p.low), "=l"(p.high)
               : "l"(from)
               : "memory");
  return p;
}

// The number of this launch, from the counter of the storage.
[[nodiscard]] __device__ __forceinline__ uint32 launch_number(const DecodeArgs& args) {
  const uint64 count = *static_cast<const volatile uint64*>(args.storage);
  return static_cast<uint32>(count / kDecodeLaunch);
}

// By one thread of every block, when the block has read all that it wants.
__device__ __forceinline__ void end_launch(const DecodeArgs& args) {
  const uint64 share = blockIdx.x == 0 ? kDecodeLaunch - (gridDim.x - 1) : 1;
  atomicAdd(static_cast<unsigned long long*>(args.storage), share);
}

template <class Config>
struct DecodeNodes {
  using Sizes = DecodeSizes<Config>;
  using State = DecodeState<Config>;
  static constexpr int kPackets = decode_node_packets(Sizes::kTile);
  static constexpr int kBytes = decode_node_bytes(Sizes::kTile);

  const DecodeArgs& args;
  uint32 tag;
  bool live;  // has the thread a row that exists? Of others nothing is written or read

  [[nodiscard]] __device__ __forceinline__ char* at(int64 block, int slot) const {
    return static_cast<char*>(args.storage) + kDecodeHeaderBytes + (block * kDecodeNodesOfBlock + slot) * kBytes +
           static_cast<int>(threadIdx.x) * 16;
  }

  __device__ __forceinline__ void write(int slot, State& state) const {
    if (!live) return;
    char* to = at(blockIdx.x, slot);
#pragma unroll
    for (int i = 0; i < kPackets; ++i) {
      const float z = 3 * i + 2 < State::kFloats ? state.value[min(3 * i + 2, State::kFloats - 1)] : 0.0f;
      const float y = 3 * i + 1 < State::kFloats ? state.value[min(3 * i + 1, State::kFloats - 1)] : 0.0f;
      store_packet(to + i * Config::kThreads * 16, state.value[3 * i], y, z, tag);
    }
  }

  // Some nodes at once, so that their packets come together. Waits until they are there.
  template <int kCount>
  __device__ __forceinline__ void read(const char* const (&from)[kCount], State (&states)[kCount]) const {
#pragma unroll
    for (State& state : states) state = State::empty();
    if (!live) return;
    bool all_here;
    do {
      all_here = true;
#pragma unroll
      for (int node = 0; node < kCount; ++node) {
#pragma unroll
        for (int i = 0; i < kPackets; ++i) {
          const Packet p = load_packet(from[node] + i * Config::kThreads * 16);
          all_here &= p.tag() == tag;
          float* value = states[node].value;
          value[3 * i] = __uint_as_float(static_cast<uint32>(p.low));
          if (3 * i + 1 < State::kFloats) value[3 * i + 1] = __uint_as_float(static_cast<uint32>(p.low >> 32));
          if (3 * i + 2 < State::kFloats) value[3 * i + 2] = __uint_as_float(static_cast<uint32>(p.high));
        }
      }
    } while (!all_here);
  }
};

// A node in the list of those that a block merges.
struct ListedNode {
  int block, slot, begin, level;
};

// The nodes of a part [begin, end) of an item, in order: visit(number, begin, level). Returns how many they are.
template <class Visit>
__device__ __forceinline__ int for_each_node(int begin, int end, bool ends_item, const Visit& visit) {
  int count = 0;
  while (begin < end) {
    const int level = node_level(begin, end, ends_item);
    visit(count++, begin, level);
    if (ends_item && begin + (1LL << level) >= end) break;
    begin += 1 << level;
  }
  return count;
}

// The slot of node `number` of a part.
[[nodiscard]] __device__ __forceinline__ int slot_of(bool begins_item, int number) {
  return begins_item ? kDecodeInnerNodes + number : number;
}

// Lists the nodes of an item that lie in 32 blocks from `first` on, up to this one. By one warp. Returns their number.
__device__ __forceinline__ int list_nodes(const DecodeSchedule& schedule, const DecodeItem& item, int64 first,
                                          int64 last, ListedNode* list) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  const int64 block = first + lane;
  const int begin_unit = item.span.begin_unit;
  int begin = 0, end = 0;
  if (block <= last) {
    const int64 from = block * schedule.share, to = from + schedule.share;
    begin = begin_unit + (from <= item.first ? 0 : schedule.snapped(item, from));
    end = begin_unit + (to >= item.end() ? item.span.units() : schedule.snapped(item, to));
  }
  const bool begins = begin == begin_unit, ends = end == item.span.end_unit;
  const int count = for_each_node(begin, end, ends, [](int, int, int) {});
  int before = count;
#pragma unroll
  for (int distance = 1; distance < kWarpThreads; distance *= 2) {
    const int other = __shfl_up_sync(kAllLanes, before, distance);
    if (lane >= distance) before += other;
  }
  const int total = __shfl_sync(kAllLanes, before, kWarpThreads - 1);
  ListedNode* mine = list + before - count;
  for_each_node(begin, end, ends, [&](int number, int at, int level) {
    mine[number] = {static_cast<int>(block), slot_of(begins, number), at, level};
  });
  return total;
}

}  // namespace attend
