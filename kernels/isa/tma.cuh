// Access to the copy engine (TMA). PTX ISA, data movement: cp.async.bulk.tensor, prefetch.tensormap. Requires sm_90.
#pragma once

#include "../common/args.cuh"
#include "../common/portable.cuh"
#include "mbarrier.cuh"
#include "smem_address.cuh"

namespace attend {

// Prefetches the tensor map of a tensor. One thread calls it before the first use of the map.
__device__ __forceinline__ void tma_prefetch_map(const TensorMapArg& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// Loads one tile of a tensor whose map is described in ForwardTmaArgs. The tile consists of rows of one head, from
// `row` on. The copy engine writes it in swizzled panels to an address that is a multiple of kSwizzleAtom. Elements
// outside the tensor become zeros, and count among the bytes. One thread calls it, after it has added the bytes to
// `full`. The clobber "memory" keeps the load behind the wait for a free destination.
__device__ __forceinline__ void tma_load_tile(void* smem, const TensorMapArg& map, Mbarrier& full, int64 row,
                                              uint32 head, uint32 batch) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4, %5, %6}], [%7];" ::"r"(smem_address(smem)),
      "l"(&map), "r"(0), "r"(static_cast<int>(row)), "r"(0), "r"(head), "r"(batch), "r"(smem_address(&full))
      : "memory");
}

}  // namespace attend
