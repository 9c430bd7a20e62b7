// What a cache knows of a sequence, where its keys lie, and their factors: CacheLayout of src/core/cache_layout.hpp on
// the device. Nothing that arrays name is trusted: rows, lengths and pages that do not exist are never read or written.
#pragma once

#include "cache_args.cuh"

namespace attend {

struct CachedSequence {
  int64 cache_row;  // of a contiguous cache; of a paged one the row of the table
  int64 length;     // with what is added, clamped to the capacity; of a dead sequence 0
  bool dead;
};

// A row of k_cache and v_cache.
struct CachePlace {
  int64 block;  // -1: the place does not exist
  int64 row;

  [[nodiscard]] __device__ __forceinline__ bool exists() const { return block >= 0; }
};

// Quotient and remainder of numbers >= 0, in 32 bits where both fit: a division in 64 bits is some 100 instructions.
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

// Keys that sequence s has beyond seqlens_k. Offsets that decrease count as none.
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

// Keys of sequence s before it are not seen.
[[nodiscard]] __device__ __forceinline__ int64 first_key(const CacheArgs& cache, int64 s) {
  const int pad = cache.cache_leftpad != nullptr ? cache.cache_leftpad[s] : 0;
  return pad > 0 ? pad : 0;
}

// Block and row of number `at` >= 0 of keys that lie block after block.
[[nodiscard]] __device__ __forceinline__ CachePlace split_by_blocks(const CacheArgs& cache, int64 at) {
  if (cache.block_shift != kNoBlockShift) return {at >> cache.block_shift, at & (cache.block_size - 1)};
  const Division d = divide(at, cache.block_size);
  return {d.quotient, d.rest};
}

// What a table says, or -1 if there is no such page.
[[nodiscard]] __device__ __forceinline__ int64 existing_page(const CacheArgs& cache, int64 page) {
  return page >= 0 && page < cache.num_blocks ? page : -1;
}

// Page number `entry` of a row of the table, or -1 where it does not exist. entry < capacity / block_size.
[[nodiscard]] __device__ __forceinline__ int64 page(const CacheArgs& cache, int64 cache_row, int64 entry) {
  return existing_page(cache, cache.pages[cache_row * cache.table_row_stride + entry]);
}

// Where key `key` < capacity of a live sequence lies.
[[nodiscard]] __device__ __forceinline__ CachePlace place(const CacheArgs& cache, int64 cache_row, int64 key) {
  if (cache.is_paged == 0) return {cache_row, key};
  const CachePlace in_table = split_by_blocks(cache, key);
  return {page(cache, cache_row, in_table.block), in_table.row};
}

// Where the factor of a row that exists lies, in floats from descale.data.
[[nodiscard]] __device__ __forceinline__ int64 factor_offset(const DescaleArgs& descale, int64 s, int64 head,
                                                             const CachePlace& at) {
  return s * descale.sequence_stride + at.block * descale.block_stride + at.row * descale.row_stride +
         head * descale.head_stride;
}
[[nodiscard]] __device__ __forceinline__ float factor(const DescaleArgs& descale, int64 s, int64 head,
                                                      const CachePlace& at) {
  return descale.data == nullptr ? 1.0f : descale.data[factor_offset(descale, s, head, at)];
}

// The sequence that owns row `token` of packed rows: the last one whose offset is not above it. num_sequences for rows
// behind the last sequence's; offsets are (num_sequences + 1). All lanes of the warp call it together and get the same.
// Each round asks for 32 offsets at once, since memory is far: 1000 sequences are two rounds.
[[nodiscard]] __device__ __forceinline__ int64 sequence_of_row(const int* offsets, int64 num_sequences, int64 token) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int64 low = 0, high = num_sequences + 1;  // it is one of [low, high)
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
