// Merges the nodes of an item that other blocks wrote, in shared memory. Each merge is a chain of dependent
// instructions. The nodes are merged level by level of the tree, so that several merges overlap.
#pragma once

#include "decode_exchange.cuh"
#include "decode_large_nodes.cuh"
#include "decode_stack.cuh"

namespace attend {

template <class Config>
class DecodeMerge {
 public:
  using Nodes = DecodeNodes<Config>;
  using Share = DecodeShareOf<Config>;
  using Stack = DecodeStack<Config, Share>;

  // Merges the nodes that Nodes::gather() has copied. The nodes on the stack precede these nodes and take part in the
  // merge. The order of the nodes is kept. All lanes of a warp must call it. A lane that is not live merges nothing.
  // Returns the last node. Nodes that still wait for a right neighbour stay on the stack.
  [[nodiscard]] static __device__ __forceinline__ Share run(const Nodes& nodes, const ListedNode* list, int count,
                                                            char* shared, Stack& stack, bool is_live) {
    if constexpr (kAtOnce == 1) {
      return one_by_one(nodes, list, count, shared, stack, is_live);
    } else {
      return by_levels(list, count, shared, stack, is_live);
    }
  }

 private:
  static constexpr short kNoLevel = 0x7fff;
  // Number of nodes that are merged at the same time. The number of registers limits it.
  static constexpr int kAtOnce = Share::kFloats <= 8 ? 4 : Share::kFloats <= 16 ? 2 : 1;

  [[nodiscard]] static __device__ __forceinline__ Share one_by_one(const Nodes& nodes, const ListedNode* list,
                                                                   int count, char* shared, Stack& stack,
                                                                   bool is_live) {
    Share state = Share::empty();
    if (!is_live) return state;
#pragma unroll 1
    for (int node = 0; node < count; ++node) {
      if (node > 0) stack.push(state);
      state = nodes.gathered(list, shared, node);
      stack.complete(state, list[node].merges);
    }
    return state;
  }

  [[nodiscard]] static __device__ __forceinline__ Share by_levels(const ListedNode* list, int count, char* shared,
                                                                  Stack& stack, bool is_live) {
    const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
    const ListedNode own = lane < count ? list[lane] : ListedNode{0, kNoLevel, 0};
    const int end = __reduce_max_sync(kAllLanes, lane < count ? own.level + own.merges : 0);
    uint32 alive = kAllLanes >> (kWarpThreads - count);  // nodes that have not been merged into another one
#pragma unroll 1
    for (int level = __reduce_min_sync(kAllLanes, static_cast<int>(own.level)); level < end; ++level) {
      // Whether the lane's node merges with its left neighbour at this level. The left neighbour is complete by then
      const bool is_right = own.level <= level && level < own.level + own.merges;
      // -1 if the left neighbour is on the stack
      const int left = 31 - __clz(static_cast<int>(alive & ((1u << lane) - 1)));
      merge_level(__ballot_sync(kAllLanes, is_right), left, shared, stack, is_live);
      alive &= ~__reduce_or_sync(kAllLanes, is_right && left >= 0 ? 1u << left : 0);
    }
    Share state = Share::empty();
    if (!is_live) return state;
#pragma unroll 1
    while (true) {
      state = Nodes::gathered(nullptr, shared, __ffs(static_cast<int>(alive)) - 1);
      alive &= alive - 1;
      if (alive == 0) return state;
      stack.push(state);
    }
  }

  // Merges the nodes in the bit mask `right` with their left neighbours. `left` is the left neighbour of the node that
  // has the lane's number.
  static __device__ __forceinline__ void merge_level(uint32 right, int left, char* shared, Stack& stack, bool is_live) {
    const int first = __ffs(static_cast<int>(right)) - 1;
    if (__shfl_sync(kAllLanes, left, max(first, 0)) < 0 && right != 0) {
      if (is_live) {
        Share state = Nodes::gathered(nullptr, shared, first);
        stack.complete(state, 1);
        Nodes::put(shared, first, state);
      }
      right &= right - 1;
    }
#pragma unroll 1
    while (right != 0) {
      int node[kAtOnce], before[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {  // If fewer than kAtOnce nodes remain, one of them is merged several times
                                           // with the same result
        node[i] = __ffs(static_cast<int>(right)) - 1;
        before[i] = __shfl_sync(kAllLanes, left, node[i]);
        right = i + 1 < kAtOnce && (right & (right - 1)) == 0 ? right : right & (right - 1);
      }
      if (is_live) merge_pairs(node, before, shared);
    }
  }
  static __device__ __forceinline__ void merge_pairs(const int (&node)[kAtOnce], const int (&before)[kAtOnce],
                                                     char* shared) {
    Share state[kAtOnce], left[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      left[i] = Nodes::gathered(nullptr, shared, before[i]);
      state[i] = Nodes::gathered(nullptr, shared, node[i]);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) state[i].merge(left[i]);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) Nodes::put(shared, node[i], state[i]);
  }
};

}  // namespace attend
