// A sequence in the cache, the places of its keys, and their descale factors. This is the device version of CacheLayout
// in src/core/cache_layout.hpp. The contents of arrays are checked: rows, lengths and pages that do not exist are never
// read or written.
#pragma once

#include "cache_args.cuh"

namespace attend {

struct CachedSequence {
  int64 cache_row;  // row of a contiguous cache, or row of the page table
  int64 length;     // number of keys including added keys, at most the capacity. 0 if the sequence is dead
  bool dead;
};

// Place of a row in k_cache and v_cache.
struct CachePlace {
  int64 block;  // -1 if the place does not exist
  int64 row;

  [[nodiscard]] __device__ __forceinline__ bool exists() const { return block >= 0; }
};

// Quotient and remainder of non-negative numbers. The division uses 32 bits if both numbers fit, because a 64-bit
// division takes about 100 instructions.
struct Division {
  int64 quotient, rest;
};
[[nodiscard]] __device__ __forceinline__ Division divide_wide(int64 value, int64 divisor) {
  const int64 quotient = value / divisor;
  return {quotient, value - quotient * divisor};
}
[[nodiscard]] __device__ __forceinline__ Division divide(int64 value, int64 divisor) {
  if (((value | divisor) >> 32) != 0) return divide_wide(value, divisor);
  const uint32 quotient = static_cast<uint32>(value) / static_cast<uint32>(divisor);
  return {quotient, static_cast<uint32>(value) - quotient * static_cast<uint32>(divisor)};
}

// Returns the number of keys that sequence s has beyond seqlens_k. If offsets decrease, the number is 0.
[[nodiscard]] __device__ __forceinline__ int64 added_keys(const CacheArgs& cache, int64 s) {
  if (cache.added_offsets == nullptr) return cache.added;
  const int64 added = static_cast<int64>(cache.added_offsets[s + 1]) - cache.added_offsets[s];
  return added > 0 ? added : 0;
}

[[nodiscard]] __device__ __forceinline__ CachedSequence cached(const CacheArgs& cache, int64 s) {
  const int64 row = cache.cache_batch_idx != nullptr ? cache.cache_batch_idx[s] : s;
  const int64 length = cache.seqlens_k != nullptr ? cache.seqlens_k[s] : cache.capacity;
  if (row < 0 || row >= cache.cache_rows || length < 0) return {row, 0, true};
  const int64 all = length + added_keys(cache, s);
  return {row, all < cache.capacity ? all : cache.capacity, false};
}

// Returns the first visible key of sequence s, which follows the left padding.
[[nodiscard]] __device__ __forceinline__ int64 first_key(const CacheArgs& cache, int64 s) {
  const int pad = cache.cache_leftpad != nullptr ? cache.cache_leftpad[s] : 0;
  return pad > 0 ? pad : 0;
}

// Returns the block and the row in it of key `at`, for keys stored block after block. `at` must not be negative.
[[nodiscard]] __device__ __forceinline__ CachePlace split_by_blocks(const CacheArgs& cache, int64 at) {
  if (cache.block_shift != kNoBlockShift) return {at >> cache.block_shift, at & (cache.block_size - 1)};
  const Division d = divide(at, cache.block_size);
  return {d.quotient, d.rest};
}

// Returns `page`, or -1 if there is no such page.
[[nodiscard]] __device__ __forceinline__ int64 existing_page(const CacheArgs& cache, int64 page) {
  return page >= 0 && page < cache.num_blocks ? page : -1;
}

// Returns the page in entry `entry` of a row of the page table, or -1 if the page does not exist. `entry` must be less
// than capacity / block_size.
[[nodiscard]] __device__ __forceinline__ int64 page(const CacheArgs& cache, int64 cache_row, int64 entry) {
  return existing_page(cache, cache.pages[cache_row * cache.table_row_stride + entry]);
}

// Returns the place of a key of a live sequence. The key must be less than the capacity.
[[nodiscard]] __device__ __forceinline__ CachePlace place(const CacheArgs& cache, int64 cache_row, int64 key) {
  if (cache.is_paged == 0) return {cache_row, key};
  const CachePlace in_table = split_by_blocks(cache, key);
  return {page(cache, cache_row, in_table.block), in_table.row};
}

// Returns the offset of the descale factor of a row, in floats from descale.data. The row must exist.
[[nodiscard]] __device__ __forceinline__ int64 factor_offset(const DescaleArgs& descale, int64 s, int64 head,
                                                             const CachePlace& at) {
  return s * descale.sequence_stride + at.block * descale.block_stride + at.row * descale.row_stride +
         head * descale.head_stride;
}
[[nodiscard]] __device__ __forceinline__ float factor(const DescaleArgs& descale, int64 s, int64 head,
                                                      const CachePlace& at) {
  return descale.data == nullptr ? 1.0f : descale.data[factor_offset(descale, s, head, at)];
}

// Returns the sequence that contains the packed row `token`, which is the last sequence whose offset is at most
// `token`. Returns num_sequences if the row lies behind the last sequence. `offsets` has num_sequences + 1 entries. All
// lanes of the warp call it together, and get the same result. Each round reads 32 offsets at once, because memory
// latency is high. For 1000 sequences, the search takes two rounds.
[[nodiscard]] __device__ __forceinline__ int64 sequence_of_row(const int* offsets, int64 num_sequences, int64 token) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int64 low = 0, high = num_sequences + 1;  // the result lies in [low, high)
  while (high - low > 1) {
    const int64 step = (high - low + 31) / 32;
    const int64 at = low + lane * step;
    const bool starts_before = lane == 0 || (at < high && offsets[at] <= token);
    const int last = 31 - __clz(static_cast<int>(__ballot_sync(0xffffffffu, starts_before)));
    low += last * step;
    high = low + step < high ? low + step : high;
  }
  return low;
}

}  // namespace attend
