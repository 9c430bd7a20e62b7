// Tiles of keys and values from pages that are too small for the copy engine's boxes: row by row, by cp.async, to where
// the boxes would bring them. By one warp.
//
// A tile is announced when the copies of the next one are under way, or when there is nothing else to do.
#pragma once

#include "../isa/cp_async.cuh"
#include "sm90_cached_keys.cuh"

namespace attend {

template <class Config>
struct Sm90CachedCopies {
  using Shape = Sm90Shape<Config>;
  using Bits = Sm90KeyBits<Config>;
  static constexpr int kRowsAtOnce = kWarpThreads * kChunkBytes / kSwizzleBytes;
  Mbarrier* pending = nullptr;  // of the tile whose copies were asked for last

  // Announces the last tile when it is there.
  __device__ __forceinline__ void announce() {
    if (pending == nullptr) return;
    cp_async_wait<0>();
    arrive();
    pending = nullptr;
  }

  // Waits until the buffer is free. The consumers may have to see the last tile first.
  __device__ __forceinline__ void wait_for(Mbarrier& empty, uint32 parity) {
    if (!__all_sync(kAllLanes, empty.has_ended(parity))) announce();
    empty.wait(parity);
  }

  // Asks for tile n of a head's rows, of kColumns columns, in a tensor. Rows that do not exist, and columns behind the
  // last, become zeros. missing: gets the keys that do not exist, or is null.
  template <int kColumns>
  __device__ __forceinline__ void copy(const Sm90CachedKeys<Config>& keys, const void* tensor,
                                       const TensorStrides& stride, int n, int head, unsigned char* to, Mbarrier& full,
                                       Bits* missing) {
    constexpr int kPanels = sm90_panels(kColumns);
    const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
    const uint32 lane_to = smem_address(to) + lane / 8 * kSwizzleBytes;
#pragma unroll 1
    for (int word = 0; word * kWarpThreads < Config::kBlockN; ++word) {
      const int in_tile = word * kWarpThreads + lane;
      const CachePlace at = in_tile < Config::kBlockN ? keys.row(n * Config::kBlockN + in_tile) : CachePlace{-1, 0};
      const Bits16* of_lane = static_cast<const Bits16*>(tensor) + stride.offset(at.block, head, at.row);
      const uint64 from = at.exists() ? reinterpret_cast<uint64>(of_lane) : 0;
      const uint32 none = __ballot_sync(kAllLanes, !at.exists());
      if (missing != nullptr && lane == 0) missing->word[word] = none;
#pragma unroll 1
      for (int row = lane / 8; row < kWarpThreads; row += kRowsAtOnce) {
        const uint64 of_row = __shfl_sync(kAllLanes, from, row);
        if (word * kWarpThreads + row >= Config::kBlockN) continue;
        // Chunks change places inside of a row, as the 128-byte swizzle has them
        const uint32 place = lane_to + (word * kWarpThreads + row - lane / 8) * kSwizzleBytes +
                             static_cast<uint32>((lane ^ row) % 8 * kChunkBytes);
#pragma unroll
        for (int panel = 0; panel < kPanels; ++panel) {
          const int column = panel * kPanelColumns + lane % 8 * 8;
          const bool exists = of_row != 0 && column < kColumns;
          const auto* source = reinterpret_cast<const Bits16*>(of_row) + column;
          cp_async_16(place + panel * Shape::kPanelBytesK, exists ? source : tensor, exists);
        }
      }
    }
    cp_async_commit();
    if (pending != nullptr) {
      cp_async_wait<1>();  // the tile before this one is there
      arrive();
    }
    pending = &full;
  }

 private:
  // The copies of all lanes are there, also for the tensor cores: the tile may be announced.
  __device__ __forceinline__ void arrive() const {
    fence_smem_for_async();
    __syncwarp();
    if (threadIdx.x % kWarpThreads == 0) pending->arrive();
  }
};

}  // namespace attend
