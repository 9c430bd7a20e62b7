// Kernel arguments that describe a cache of keys and values. They hold the checked CacheIndex of
// include/attend/serving.hpp. Host and device share this file. src/cuda/serving/cache_args.cpp fills the structs, and
// the device functions in cache.cuh read them.
#pragma once

#include "../common/args.cuh"

namespace attend {

// The descale factors of an 8-bit cache. Factors belong either to sequences or to rows of the cache. So either
// sequence_stride is 0, or block_stride and row_stride are 0.
struct DescaleArgs {
  const float* data;  // null if all factors are 1
  int64 sequence_stride;
  int64 block_stride;
  int64 row_stride;  // between neighbouring rows of a block
  int64 head_stride;
};
static_assert(sizeof(DescaleArgs) == 5 * 8);

// The cache. A block is a page, or a row of a contiguous cache.
struct CacheArgs {
  const int* seqlens_k;        // (num_sequences) numbers of keys; negative if the sequence is dead. If null, all
                               // sequences have `capacity` keys
  const int* cache_batch_idx;  // (num_sequences) rows of the cache, or of the page table. If null, sequence s has row s
  const int* cache_leftpad;    // (num_sequences) first visible keys. If null, all are 0
  const int* pages;            // page table (cache_rows, capacity / block_size), if is_paged is set
  const int* added_offsets;    // (num_sequences + 1) offsets of the keys that live sequences have beyond seqlens_k. If
                               // null, `added` applies
  int64 added;                 // number of keys that each sequence has beyond seqlens_k, if added_offsets is null
  int64 table_row_stride;
  int64 cache_rows;  // number of rows that cache_batch_idx can select
  int64 num_blocks;
  int64 block_size;  // number of keys in a block
  int64 capacity;    // largest number of keys of a sequence
  DescaleArgs k_descale;
  DescaleArgs v_descale;  // equal to k_descale if there is no v_cache
  uint32 is_paged;
  uint32 block_shift;  // exponent with 2^block_shift == block_size, or kNoBlockShift if block_size is not a power of
                       // two
};
static_assert(sizeof(CacheArgs) == 11 * 8 + 2 * sizeof(DescaleArgs) + 2 * 4);

constexpr uint32 kNoBlockShift = 64;

}  // namespace attend
