// Tiles of keys and values from a cache, Config::kIsCached: box by box, since a box lies in one page.
//
// A key is hidden if it lies in front of the first key (cache_leftpad), or in a page that does not exist. Consumers mask
// its scores. Its value and those of keys that the sequence does not have are zeros: p is 0 there, but 0 * NaN is NaN.
#pragma once

#include "../isa/wgmma.cuh"
#include "../serving/cache.cuh"
#include "../tiles/tma_panel.cuh"
#include "sm90_cached_args.cuh"
#include "sm90_work.cuh"

namespace attend {

// The keys of the sequence of a tile of rows. By one warp.
template <class Config>
struct Sm90CachedKeys {
  using Shape = Sm90Shape<Config>;
  using Bits = Sm90KeyBits<Config>;
  const Sm90CachedArgs& args;
  int64 cache_row;
  int begin_key, end_key;  // keys that a row of the sequence may see
  int first_key;

  [[nodiscard]] static __device__ __forceinline__ Sm90CachedKeys of(const Sm90ForwardArgs& forward_args,
                                                                    const Sm90Work& work) {
    const auto& args = static_cast<const Sm90CachedArgs&>(forward_args);
    const KeyRange seen = sm90_mask<Config>(args.options, work).rows(0, work.seqlen_q);
    const int begin = max(static_cast<int>(seen.begin), work.k_begin);
    return {args, cached(args.cache, work.sequence).cache_row, begin, max(begin, static_cast<int>(seen.end)),
            work.k_begin};
  }

  // The lane's box of tile n: box `lane`. Pages are looked up for keys that may be seen, and for no others.
  [[nodiscard]] __device__ __forceinline__ CachePlace box(int n) const {
    const int in_tile = lane() << args.box_shift, first = n * Config::kBlockN + in_tile;
    if (in_tile >= Config::kBlockN || first >= end_key || first + (1 << args.box_shift) <= begin_key) return {-1, 0};
    return place(args.cache, cache_row, first);
  }
  // A key's row, if one may see it.
  [[nodiscard]] __device__ __forceinline__ CachePlace row(int key) const {
    if (key < begin_key || key >= end_key) return {-1, 0};
    return place(args.cache, cache_row, key);
  }

  // Asks for the boxes of the tile that exist, and announces their bytes to `full`. The buffer at `to` is free.
  template <int kPanels>
  __device__ __forceinline__ void load(unsigned char* to, const TensorMapArg& map, Mbarrier& full, const CachePlace& at,
                                       uint32 existing, int head) const {
    const uint32 box_bytes = static_cast<uint32>(kSwizzleBytes) << args.box_shift;
    if (lane() == 0) full.arrive_expect_bytes(kPanels * static_cast<uint32>(__popc(existing)) * box_bytes);
    __syncwarp();  // the bytes are announced
    if (!at.exists()) return;
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      tma_load_panel(smem_address(to) + panel * Shape::kPanelBytesK + lane() * box_bytes, map, full,
                     {panel * kPanelColumns, static_cast<int>(at.row), head, static_cast<int>(at.block)});
    }
  }

  // Tells the consumers. Whoever announces the tile's keys does so behind this.
  static __device__ __forceinline__ void hide(Bits& of_tile, const Bits& keys) {
    if (lane() == 0) of_tile = keys;
  }
  // The keys of tile n that are hidden. existing: a bit for each of its boxes.
  [[nodiscard]] __device__ __forceinline__ Bits hidden(int n, uint32 existing) const {
    return bits_where(n, existing, first_key, n * Config::kBlockN + Config::kBlockN);
  }
  // Those whose values have to be zeros.
  [[nodiscard]] __device__ __forceinline__ Bits without_values(int n, uint32 existing) const {
    return bits_where(n, existing, begin_key, end_key);
  }

  // By all lanes; the tile has landed.
  static __device__ __forceinline__ void clear_values(unsigned char* v, const Bits& keys) {
    constexpr int kChunks = kSwizzleBytes / kChunkBytes;  // of a row of a panel; zeros need no swizzle
    constexpr int kRowsAtOnce = kWarpThreads / kChunks;
#pragma unroll
    for (int word = 0; word < Bits::kWords; ++word) {
#pragma unroll 1
      for (int row = lane() / kChunks; row < min(kWarpThreads, Config::kBlockN - word * kWarpThreads);
           row += kRowsAtOnce) {
        if ((keys.word[word] >> row & 1) == 0) continue;
        unsigned char* to = v + (word * kWarpThreads + row) * kSwizzleBytes + lane() % kChunks * kChunkBytes;
#pragma unroll
        for (int panel = 0; panel < Shape::kPanelsV; ++panel) {
          *reinterpret_cast<uint4*>(to + panel * Shape::kPanelBytesK) = make_uint4(0, 0, 0, 0);
        }
      }
    }
  }

 private:
  [[nodiscard]] static __device__ __forceinline__ int lane() {
    return static_cast<int>(threadIdx.x) % kWarpThreads;
  }
  // The keys of tile n that lie in no existing box, or outside of [begin, end).
  [[nodiscard]] __device__ __forceinline__ Bits bits_where(int n, uint32 existing, int begin, int end) const {
    Bits bits = {};
#pragma unroll
    for (int word = 0; word < Bits::kWords; ++word) {
      const int in_tile = word * kWarpThreads + lane(), key = n * Config::kBlockN + in_tile;
      const bool exists = (existing >> (in_tile >> args.box_shift) & 1) != 0;
      bits.word[word] =
          __ballot_sync(kAllLanes, in_tile < Config::kBlockN && (!exists || key < begin || key >= end));
    }
    return bits;
  }
};

}  // namespace attend
