// Specialises DecodeNodes for nodes that do not fit into the ring. Such nodes lie in device memory, in the layout of
// stack nodes. Each warp's share of a node has a tag, which is the launch number. The tag is written after the share,
// so a reader that finds the tag also finds the share.
#pragma once

#include "../isa/release_acquire.cuh"
#include "decode_exchange.cuh"

namespace attend {

template <class Config>
requires(decode_has_large_nodes(DecodeSizes<Config>::kTile)) struct DecodeNodes<Config> {
  using Sizes = DecodeSizes<Config>;
  using Share = DecodeShareOf<Config>;
  static constexpr int kBytes = decode_node_bytes(Sizes::kTile);
  static constexpr int kMostGathered = 16;  // largest number of nodes that a thread waits for at once

  const DecodeArgs& args;
  uint32 launch;

  // Writes a node. All lanes of the warp must call it.
  __device__ __forceinline__ void write(int slot, const Share& share) const {
    const uint32 place = blockIdx.x * kDecodeNodesOfBlock + slot;
    char* node = at(place);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const float* x = share.value + 4 * i;
      vector(node, i) = {x[0], x[1], x[2], x[3]};
    }
    __syncwarp();  // waits until all lanes have written their shares; the tag may then be written
    if (threadIdx.x % kWarpThreads == 0) store_release(tag(place), tag_of_launch());
  }

  // Waits until the warp's shares of all listed nodes have been written.
  __device__ __forceinline__ void gather(const ListedNode* list, int count, char*) const {
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      const uint32* found = tag(list[i].place);
      while (load_acquire(found) != tag_of_launch()) {
      }
    }
  }
  // Returns the thread's share of a gathered node.
  [[nodiscard]] __device__ __forceinline__ Share gathered(const ListedNode* list, char*, int node) const {
    const char* const from = at(list[node].place);
    Share share = Share::empty();
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const float4 x = __ldcg(&vector(from, i));
      share.value[4 * i] = x.x, share.value[4 * i + 1] = x.y;
      share.value[4 * i + 2] = x.z, share.value[4 * i + 3] = x.w;
    }
    return share;
  }

 private:
  static constexpr int kVectors = ceil_div(Share::kFloats, 4), kThreads = Sizes::kStateThreads;

  // Returns the launch number with the top bit set. Nodes that were never written have a tag of 0.
  [[nodiscard]] __device__ __forceinline__ uint32 tag_of_launch() const {
    return launch | 0x80000000u;
  }
  [[nodiscard]] __device__ __forceinline__ char* at(uint32 place) const {
    const int tags = decode_tag_bytes(static_cast<int>(gridDim.x));
    return static_cast<char*>(args.storage) + kDecodeHeaderBytes + tags + static_cast<int64>(place) * kBytes;
  }
  [[nodiscard]] __device__ __forceinline__ uint32* tag(uint32 place) const {
    static_assert(kThreads / kWarpThreads == kDecodeTagsOfNode);
    return reinterpret_cast<uint32*>(static_cast<char*>(args.storage) + kDecodeHeaderBytes) +
           place * kDecodeTagsOfNode + state_thread<Config>() / kWarpThreads;
  }
  [[nodiscard]] static __device__ __forceinline__ float4& vector(char* node, int i) {
    return reinterpret_cast<float4*>(node)[i * kThreads + state_thread<Config>()];
  }
  [[nodiscard]] static __device__ __forceinline__ const float4& vector(const char* node, int i) {
    return reinterpret_cast<const float4*>(node)[i * kThreads + state_thread<Config>()];
  }
};

}  // namespace attend
