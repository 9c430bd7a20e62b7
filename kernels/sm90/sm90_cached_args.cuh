// The parameter of sm90_forward where keys and values lie in a cache, Config::kIsCached, for host and device.
#pragma once

#include "../serving/cache_args.cuh"
#include "sm90_forward_args.cuh"

namespace attend {

// A box of fewer rows has not the whole pattern of the 128-byte swizzle.
constexpr int kSm90LeastBoxRows = 8;

// k_map and v_map: (head_dim, block_size, heads_k, blocks) of the cache, boxes of (64, rows, 1, 1): kBlockN rows if
// kKeyLoaders is 1, otherwise 2^box_shift. Without kHasBoxes they are not read: base.k, base.v and their strides say
// where the cache is. options: packed rows have cu_seqlens_q and total_q; without cu_seqlens_q rows are dense.
struct Sm90CachedArgs : Sm90ForwardArgs {
  static constexpr const char* kTypeName = "Sm90CachedArgs";
  CacheArgs cache;
  uint32* blocks_done;  // 0 before and after a launch, and so is next_tile
  uint32 box_shift;     // a box lies in one block of the cache, and tiles of keys are whole boxes
  uint32 least_rows;    // sequences with fewer rows are left to another kernel, and so are dead ones
  uint32 lse_base2;
  uint32 unused;
};
static_assert(sizeof(Sm90CachedArgs) == (sizeof(Sm90ForwardArgs) + sizeof(CacheArgs) + 8 + 4 * 4 + 63) / 64 * 64);

}  // namespace attend
