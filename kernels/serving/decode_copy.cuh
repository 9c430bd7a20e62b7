// Copies of a loading warp: 32 rows of keys or values from wherever they lie into a slot of the ring.
#pragma once

#include "../isa/cp_async.cuh"
#include "../isa/wgmma.cuh"
#include "../tiles/tma_panel.cuh"
#include "decode_config.cuh"

namespace attend {

// For tma_load_panel(), of what other blocks read too. PTX ISA, data movement: createpolicy
[[nodiscard]] __device__ __forceinline__ uint64 read_again_policy() {
  uint64 policy = 0;
  asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// To the L2 cache only.
__device__ __forceinline__ void tma_fetch_panel(const TensorMapArg& map, const PanelPlace& at) {
  asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global.tile [%0, {%1, %2, %3, %4}];" ::"l"(&map), "r"(at.column),
               "r"(at.row), "r"(at.head), "r"(at.batch)
               : "memory");
}

// kColumns: of a row. Columns that pad it become zeros. Rows: how they lie in the slot.
template <class Config, int kColumns, class Rows>
struct DecodeCopy {
  static constexpr int kCacheBytes = DecodeSizes<Config>::kCacheBytes;
  static constexpr int kChunks = Rows::kChunks, kRowBytes = kChunks * Rows::kChunk;
  static constexpr bool kIsPadded = kColumns * kCacheBytes % kRowBytes != 0;
  static constexpr int kRun = 16;  // rows

  // The boxes of a tensor that lanes begin, to the places of their rows: the panels [kFirst, kEnd), or all without a
  // kEnd. The bytes are announced to `full`. policy: of the L2 cache. By whole warps.
  template <int kFirst = 0, int kEnd = 0>
  static __device__ __forceinline__ void boxes(char* to, const TensorMapArg& map, Mbarrier& full, PanelPlace box,
                                               int box_rows, bool begins_box, uint64 policy, int lane) {
    constexpr int kBehind = kEnd > 0 ? kEnd : Rows::kPanels;
    const int count = __popc(static_cast<int>(__ballot_sync(kAllLanes, begins_box)));
    if (lane == 0) full.expect_bytes(static_cast<uint32>(count * box_rows) * ((kBehind - kFirst) * Rows::kPitch));
    __syncwarp();  // the bytes are announced
    if (!begins_box) return;
    fence_smem_for_async();  // rows of the slot were read, and cleared
#pragma unroll
    for (int panel = kFirst; panel < kBehind; ++panel) {
      const uint32 of_panel = smem_address(to) + panel * Rows::kPanelBytes + lane * Rows::kPitch;
      box.column = panel * (Rows::kPitch / kCacheBytes);
      tma_load_panel(of_panel, map, full, box, policy);
    }
  }

  // Brings a box into the L2 cache. By one thread.
  static __device__ __forceinline__ void fetch(const TensorMapArg& map, PanelPlace at) {
#pragma unroll
    for (int panel = 0; panel < Rows::kPanels; ++panel) {
      at.column = panel * (Rows::kPitch / kCacheBytes);
      tma_fetch_panel(map, at);
    }
  }

  // to: where the first of the rows lies in shared memory. from: of each lane's row, in elements from `base`; below 0:
  // zeros. stride: from a row to its neighbour.
  static __device__ __forceinline__ void rows(char* to, const char* base, int64 from, int64 stride, int lane) {
    if constexpr (!Config::kAligned) {
      copy_elements(to, base, from, lane);
    } else if (kIsPadded || !(copies_runs(to, base, from, stride, lane) || copies_any(to, base, from, lane))) {
      copy_some(to, base, from, lane);
    }
  }

 private:
  // The lane's chunk of each round, of all chunks of the rows.
  template <class Visit>  // visit(address in shared memory, row, byte in the row)
  static __device__ __forceinline__ void for_each_chunk(char* to, int lane, const Visit& visit) {
    const int first_row = lane / kChunks, first_chunk = lane % kChunks;
    const uint32 first = smem_address(to) + Rows::place(first_row, first_chunk);
#pragma unroll(kChunks <= 16 ? kChunks : 8)
    for (int round = 0; round < kChunks; ++round) {
      if constexpr (kWarpThreads % kChunks == 0) {
        const int further = round * (kWarpThreads / kChunks);
        visit(Rows::below(first, further), first_row + further, first_chunk * Rows::kChunk);
      } else {
        const int number = round * kWarpThreads + lane, row = number / kChunks, chunk = number % kChunks;
        visit(smem_address(to) + Rows::place(row, chunk), row, chunk * Rows::kChunk);
      }
    }
  }

  // Two runs of rows that are equally far apart, as pages of 16 rows and more have: an address is one addition, where
  // other rows take a shuffle.
  [[nodiscard]] static __device__ __forceinline__ bool copies_runs(char* to, const char* base, int64 from, int64 stride,
                                                                   int lane) {
    const int64 run = __shfl_sync(kAllLanes, from, lane / kRun * kRun), step = stride * kCacheBytes;
    const bool is_in_run = from >= 0 && from == run + lane % kRun * stride;
    if (!__all_sync(kAllLanes, is_in_run) || step != static_cast<int>(step)) return false;
    const char* low = base + __shfl_sync(kAllLanes, run, 0) * kCacheBytes;
    const char* high = base + __shfl_sync(kAllLanes, run, kRun) * kCacheBytes;
    for_each_chunk(to, lane, [&](uint32 address, int row, int byte) {
      cp_async_16(address, (row < kRun ? low : high) + row % kRun * static_cast<int64>(static_cast<int>(step)) + byte);
    });
    return true;
  }

  // If all of them exist, less than 64 GB from `base`: then half a shuffle says where a row lies.
  [[nodiscard]] static __device__ __forceinline__ bool copies_any(char* to, const char* base, int64 from, int lane) {
    const uint64 chunks = static_cast<uint64>(from) * kCacheBytes / Rows::kChunk;
    const uint32 own = static_cast<uint32>(chunks);
    if (!__all_sync(kAllLanes, from >= 0 && chunks == own)) return false;
    for_each_chunk(to, lane, [&](uint32 address, int row, int byte) {
      const uint64 chunk = __shfl_sync(kAllLanes, own, row);
      cp_async_16(address, base + chunk * Rows::kChunk + byte);
    });
    return true;
  }

  static __device__ __forceinline__ void copy_some(char* to, const char* base, int64 from, int lane) {
#pragma unroll 1
    for (int round = 0; round < kChunks; ++round) {
      const int number = round * kWarpThreads + lane, row = number / kChunks, chunk = number % kChunks;
      const int64 offset = __shfl_sync(kAllLanes, from, row);
      const bool exists = offset >= 0 && (!kIsPadded || chunk * Rows::kChunk < kColumns * kCacheBytes);
      const char* source = base + (exists ? offset * kCacheBytes + chunk * Rows::kChunk : 0);
      cp_async_16(smem_address(to) + Rows::place(row, chunk), source, exists);
    }
  }

  // Where chunks do not lie on multiples of their size.
  static __device__ __forceinline__ void copy_elements(char* to, const char* base, int64 from, int lane) {
    using Storage = StorageOf<kCacheBytes>;
#pragma unroll 1
    for (int row = 0; row < kWarpThreads; ++row) {
      const int64 offset = __shfl_sync(kAllLanes, from, row);
      const Storage* source = reinterpret_cast<const Storage*>(base) + offset;
      for (int column = lane; column < kRowBytes / kCacheBytes; column += kWarpThreads) {
        const bool exists = offset >= 0 && column < kColumns;
        *reinterpret_cast<Storage*>(to + Rows::template place_of<kCacheBytes>(row, column)) =
            exists ? source[column] : Storage{};
      }
    }
  }
};

}  // namespace attend
