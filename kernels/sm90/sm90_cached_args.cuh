// Parameter of sm90_forward with keys and values in a cache, Config::kIsCached. Shared by host and device.
#pragma once

#include "../serving/cache_args.cuh"
#include "sm90_forward_args.cuh"

namespace attend {

// Minimum rows of a box. A smaller box would not contain the complete pattern of the 128-byte swizzle.
constexpr int kSm90LeastBoxRows = 8;

// k_map and v_map describe the cache, (head_dim, block_size, heads_k, blocks), with boxes of (64, rows, 1, 1). A box
// has kBlockN rows if kKeyLoaders is 1, otherwise 2^box_shift. Without kHasBoxes the kernel does not read the maps:
// base.k, base.v and their strides then describe the cache. options: packed rows have cu_seqlens_q and total_q; without
// cu_seqlens_q the rows are dense.
struct Sm90CachedArgs : Sm90ForwardArgs {
  static constexpr const char* kTypeName = "Sm90CachedArgs";
  CacheArgs cache;
  uint32* blocks_done;  // 0 before and after a launch; so is next_tile
  uint32 box_shift;     // a box lies in one block of the cache, and key tiles consist of complete boxes
  uint32 least_rows;    // another kernel handles sequences with fewer rows, and dead sequences
  uint32 lse_base2;
  uint32 unused;
};
static_assert(sizeof(Sm90CachedArgs) == (sizeof(Sm90ForwardArgs) + sizeof(CacheArgs) + 8 + 4 * 4 + 63) / 64 * 64);

}  // namespace attend
