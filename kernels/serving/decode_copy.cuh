// Copies of a loading warp. A warp copies 32 rows of keys or values, from any place in device memory, into a slot of
// the ring.
#pragma once

#include "../isa/cp_async.cuh"
#include "../isa/wgmma.cuh"
#include "../tiles/tma_panel.cuh"
#include "decode_config.cuh"

namespace attend {

// Returns the L2 cache policy of tma_load_panel() for data that other blocks also read. PTX ISA, data movement:
// createpolicy
[[nodiscard]] __device__ __forceinline__ uint64 read_again_policy() {
  uint64 policy = 0;
  asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// Prefetches a panel into the L2 cache.
__device__ __forceinline__ void tma_fetch_panel(const TensorMapArg& map, const PanelPlace& at) {
  asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global.tile [%0, {%1, %2, %3, %4}];" ::"l"(&map), "r"(at.column),
               "r"(at.row), "r"(at.head), "r"(at.batch)
               : "memory");
}

// Copies rows of kColumns columns. Padding columns become zeros. The type Rows is the layout of rows in the slot.
template <class Config, int kColumns, class Rows>
struct DecodeCopy {
  static constexpr int kCacheBytes = DecodeSizes<Config>::kCacheBytes;
  static constexpr int kChunks = Rows::kChunks, kRowBytes = kChunks * Rows::kChunk;
  static constexpr bool kIsPadded = kColumns * kCacheBytes % kRowBytes != 0;
  static constexpr int kRun = 16;  // number of rows in a run, which is a sequence of rows with a constant stride

  // Copies boxes to the places of their rows. A box is the rectangle of one TMA copy, and each lane with begins_box
  // starts one. The function copies the panels [kFirst, kEnd). If kEnd is 0, it copies all panels from kFirst on. It
  // adds the number of expected bytes to the barrier `full`. `policy` is the policy of the L2 cache. All lanes of the
  // warp must call it.
  template <int kFirst = 0, int kEnd = 0>
  static __device__ __forceinline__ void boxes(char* to, const TensorMapArg& map, Mbarrier& full, PanelPlace box,
                                               int box_rows, bool begins_box, uint64 policy, int lane) {
    constexpr int kBehind = kEnd > 0 ? kEnd : Rows::kPanels;
    const int count = __popc(static_cast<int>(__ballot_sync(kAllLanes, begins_box)));
    if (lane == 0) full.expect_bytes(static_cast<uint32>(count * box_rows) * ((kBehind - kFirst) * Rows::kPitch));
    __syncwarp();  // waits until lane 0 has added the bytes to the barrier; copies may then start
    if (!begins_box) return;
    fence_smem_for_async();  // ordinary accesses have read and zeroed the slot's rows before
#pragma unroll
    for (int panel = kFirst; panel < kBehind; ++panel) {
      const uint32 of_panel = smem_address(to) + panel * Rows::kPanelBytes + lane * Rows::kPitch;
      box.column = panel * (Rows::kPitch / kCacheBytes);
      tma_load_panel(of_panel, map, full, box, policy);
    }
  }

  // Prefetches a box into the L2 cache. One thread calls it.
  static __device__ __forceinline__ void fetch(const TensorMapArg& map, PanelPlace at) {
#pragma unroll
    for (int panel = 0; panel < Rows::kPanels; ++panel) {
      at.column = panel * (Rows::kPitch / kCacheBytes);
      tma_fetch_panel(map, at);
    }
  }

  // Copies 32 rows to shared memory, from address `to` on. `from` is the offset of the lane's row from `base`, in
  // elements. If it is negative, the row becomes zeros. `stride` is the distance between neighbouring rows, in
  // elements.
  static __device__ __forceinline__ void rows(char* to, const char* base, int64 from, int64 stride, int lane) {
    if constexpr (!Config::kAligned) {
      copy_elements(to, base, from, lane);
    } else if (kIsPadded || !(copies_runs(to, base, from, stride, lane) || copies_any(to, base, from, lane))) {
      copy_some(to, base, from, lane);
    }
  }

 private:
  // Calls visit(address in shared memory, row, byte in the row) for the lane's chunk of each round. Together, the lanes
  // visit all chunks of the rows.
  template <class Visit>
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

  // Copies two runs of rows. Pages of 16 or more rows consist of such runs. An address then takes one addition instead
  // of a shuffle. Returns false if the rows do not form two runs.
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

  // Copies the rows if all of them exist and lie less than 64 GB behind `base`. A row's offset then fits into a 32-bit
  // shuffle. Otherwise returns false.
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

  // Copies single elements, because the rows are not aligned to chunks.
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
