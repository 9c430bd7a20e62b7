// Tiles by the copy engine, one panel of 64 columns a copy, for head dimensions that are no multiple of 64.
//
// The maps are of rank 4, (head_dim, seqlen, heads, batch), boxes of (64, rows, 1, 1), swizzled in rows of 128 bytes.
// Columns past head_dim and rows past seqlen arrive as zeros, and count as bytes.
#pragma once

#include "args.cuh"
#include "mbarrier.cuh"
#include "portable.cuh"
#include "smem_address.cuh"

namespace attend {

// One panel: columns [column, column + 64) of rows from `row` on of one head, to a multiple of kSwizzleAtom. By one
// thread, which has announced the bytes to `full`. "memory": stays behind the wait that said that the place is free.
__device__ __forceinline__ void tma_load_panel(void* smem, const TensorMapArg& map, Mbarrier& full, int column, int row,
                                               int head, int batch) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(smem_address(smem)),
      "l"(&map), "r"(column), "r"(row), "r"(head), "r"(batch), "r"(smem_address(&full))
      : "memory");
}

}  // namespace attend
