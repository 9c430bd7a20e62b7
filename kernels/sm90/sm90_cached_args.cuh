// Parameter struct of sm90_forward if keys and values are in a cache (Config::kIsCached). Shared by host and device.
#pragma once

#include "../serving/cache_args.cuh"
#include "sm90_forward_args.cuh"

namespace attend {

// Minimum number of rows of a box, the rectangle of k or v that one TMA copy loads. A smaller box would not contain the
// complete pattern of the 128-byte swizzle.
constexpr int kSm90LeastBoxRows = 8;

// k_map and v_map describe the cache as (head_dim, block_size, heads_k, blocks), with boxes of (64, rows, 1, 1). A box
// has kBlockN rows if kKeyLoaders is 1, and 2^box_shift rows otherwise. If kHasBoxes is off, the kernel does not read
// the maps, and base.k, base.v and their strides describe the cache. If query rows are packed, options.cu_seqlens_q and
// options.total_q are set. If options.cu_seqlens_q is null, the query rows are dense.
struct Sm90CachedArgs : Sm90ForwardArgs {
  static constexpr const char* kTypeName = "Sm90CachedArgs";
  CacheArgs cache;
  uint32* blocks_done;  // number of blocks that have finished; like next_tile, it is 0 before and after each launch
  uint32 box_shift;     // log2 of the rows of a box. Each box lies in one block of the cache, and each key tile
                        // consists of complete boxes
  uint32 least_rows;    // this kernel skips sequences with fewer query rows, and sequences marked as dead
                        // (CachedSequence::dead)
  uint32 lse_base2;     // if not 0, lse is stored in base 2 instead of base e
  uint32 unused;
};
static_assert(sizeof(Sm90CachedArgs) == (sizeof(Sm90ForwardArgs) + sizeof(CacheArgs) + 8 + 4 * 4 + 63) / 64 * 64);

}  // namespace attend
