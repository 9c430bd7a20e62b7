// What kernels are told of a cache of keys and values: CacheIndex of include/attend/serving.hpp, checked. Shared by
// host and device; src/cuda/serving/cache_args.cpp fills it. What kernels ask of it: cache.cuh.
#pragma once

#include "../common/args.cuh"

namespace attend {

// The factors of a cache of 8 bits. Two of the strides are 0: factors are of sequences, or of rows of the cache.
struct DescaleArgs {
  const float* data;  // null: all are 1
  int64 sequence_stride;
  int64 block_stride;
  int64 row_stride;  // from row to row of a block
  int64 head_stride;
};
static_assert(sizeof(DescaleArgs) == 5 * 8);

// A block is a page, or a row of a contiguous cache.
struct CacheArgs {
  const int* seqlens_k;        // (num_sequences): keys; negative: dead. Null: all are at capacity
  const int* cache_batch_idx;  // (num_sequences): rows of the cache, or of the table. Null: s
  const int* cache_leftpad;    // (num_sequences): keys before it are not seen. Null: 0
  const int* pages;            // (cache_rows, capacity / block_size), is_paged
  const int* added_offsets;    // (num_sequences + 1): keys that live sequences have beyond seqlens_k. Null: added
  int64 added;                 // of each sequence, without added_offsets
  int64 table_row_stride;
  int64 cache_rows;  // that cache_batch_idx may name
  int64 num_blocks;
  int64 block_size;  // keys
  int64 capacity;    // keys of a sequence
  DescaleArgs k_descale;
  DescaleArgs v_descale;  // those of the keys without v_cache
  uint32 is_paged;
  uint32 block_shift;  // 2^block_shift == block_size, or kNoBlockShift
};
static_assert(sizeof(CacheArgs) == 11 * 8 + 2 * sizeof(DescaleArgs) + 2 * 4);

constexpr uint32 kNoBlockShift = 64;

}  // namespace attend
