// Copies panels of 64 columns with the copy engine. Tensor maps have the dimensions (head_dim, seqlen, heads, batch).
//
// A box of the map has (64, rows, 1, 1) elements and the 128-byte swizzle, so any head_dim that is a multiple of 8 can
// be loaded. In a load, elements outside the tensor become zeros. A store skips them. PTX ISA, data movement:
// cp.async.bulk.tensor, cp.async.bulk.commit_group, .wait_group. Requires sm_90. One thread calls each function.
#pragma once

#include "../common/args.cuh"
#include "../isa/mbarrier.cuh"
#include "../isa/smem_address.cuh"

namespace attend {

struct PanelPlace {
  int column;
  int row;
  int head;
  int batch;

  // Converts a RowPlace (attention/key_source.cuh). Row and batch entry fit into ints, because a tensor map has
  // 32-bit coordinates.
  template <class Place>
  [[nodiscard]] static __device__ __forceinline__ PanelPlace of(const Place& at, int head, int column = 0) {
    return {column, static_cast<int>(at.row), head, static_cast<int>(at.batch)};
  }
};

// Loads a panel to `smem`, which is a multiple of kSwizzleAtom. The caller must already have added the bytes of the
// full box to the expected bytes of `full`.
__device__ __forceinline__ void tma_load_panel(uint32 smem, const TensorMapArg& map, Mbarrier& full,
                                               const PanelPlace& at) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(smem),
      "l"(&map), "r"(at.column), "r"(at.row), "r"(at.head), "r"(at.batch), "r"(smem_address(&full))
      : "memory");
}

// Returns the L2 cache policy of tma_load_panel() for data that is read once. The L2 cache evicts such data first. PTX
// ISA, data movement: createpolicy.
[[nodiscard]] __device__ __forceinline__ uint64 read_once_policy() {
  uint64 policy = 0;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// Loads a panel with a policy of the L2 cache.
__device__ __forceinline__ void tma_load_panel(uint32 smem, const TensorMapArg& map, Mbarrier& full,
                                               const PanelPlace& at, uint64 policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, %3, %4, %5}], [%6], %7;" ::"r"(smem),
      "l"(&map), "r"(at.column), "r"(at.row), "r"(at.head), "r"(at.batch), "r"(smem_address(&full)), "l"(policy)
      : "memory");
}

// Stores a panel from `smem`. The threads that wrote it must have called fence_smem_for_async(), and then have passed a
// barrier.
__device__ __forceinline__ void tma_store_panel(const TensorMapArg& map, uint32 smem, const PanelPlace& at) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3, %4}], [%5];" ::"l"(&map),
               "r"(at.column), "r"(at.row), "r"(at.head), "r"(at.batch), "r"(smem)
               : "memory");
}

// Puts the thread's stores since the last commit into one group.
__device__ __forceinline__ void tma_store_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Waits until the thread's stores have read their shared memory, which may then be overwritten.
__device__ __forceinline__ void tma_store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

}  // namespace attend
