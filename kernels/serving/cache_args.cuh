// Kernel arguments of a cache of keys and values: the checked CacheIndex of include/attend/serving.hpp. Shared by host
// and device; src/cuda/serving/cache_args.cpp fills it. Device functions that use it: cache.cuh.
#pragma once

#include "../common/args.cuh"

namespace attend {

// The factors of an 8-bit cache. Two of the strides are 0, because factors belong either to sequences or to rows of the
// cache.
struct DescaleArgs {
  const float* data;  // null: all factors are 1
  int64 sequence_stride;
  int64 block_stride;
  int64 row_stride;  // from one row of a block to the next
  int64 head_stride;
};
static_assert(sizeof(DescaleArgs) == 5 * 8);

// A block is a page, or a row of a contiguous cache.
struct CacheArgs {
  const int* seqlens_k;        // (num_sequences): number of keys; negative: dead. Null: all have `capacity` keys
  const int* cache_batch_idx;  // (num_sequences): row of the cache, or of the table. Null: s
  const int* cache_leftpad;    // (num_sequences): first visible key. Null: 0
  const int* pages;            // (cache_rows, capacity / block_size), is_paged
  const int* added_offsets;    // (num_sequences + 1): keys of live sequences beyond seqlens_k. Null: see added
  int64 added;                 // added keys of each sequence, without added_offsets
  int64 table_row_stride;
  int64 cache_rows;  // number of rows that cache_batch_idx can select
  int64 num_blocks;
  int64 block_size;  // keys
  int64 capacity;    // keys of a sequence
  DescaleArgs k_descale;
  DescaleArgs v_descale;  // equal to the keys' factors if there is no v_cache
  uint32 is_paged;
  uint32 block_shift;  // 2^block_shift == block_size, or kNoBlockShift
};
static_assert(sizeof(CacheArgs) == 11 * 8 + 2 * sizeof(DescaleArgs) + 2 * 4);

constexpr uint32 kNoBlockShift = 64;

}  // namespace attend
