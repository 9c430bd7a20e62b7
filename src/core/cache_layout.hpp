// A checked CacheIndex: how much a cache holds and where its keys lie. Of decode's problem and append's alike.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "attend/serving.hpp"

namespace attend::core {

/// What a cache knows of a sequence.
struct CachedSequence {
  std::int64_t cache_row;  ///< of a contiguous cache; of a paged one the row of the table
  std::int64_t length;     ///< clamped to the capacity; of a dead sequence 0
  bool dead;               ///< see CacheIndex
};

/// A row of k_cache and v_cache.
struct CachePlace {
  std::int64_t block;  ///< index into their first dimension; -1: the place does not exist
  std::int64_t row;
};

/// The factors of a cache of 8 bits: element * factor is the number that it stands for.
struct Descale {
  const float* data = nullptr;  ///< null: all are 1
  bool is_per_row = false;      ///< a factor for each row of the cache, else for each sequence
  std::int64_t batch_stride = 0;
  std::int64_t head_stride = 0;
  std::int64_t row_stride = 0;  ///< from row to row of a page; 0 if not per row

  // Of factors on the host, with data:

  /// The factor of a row. row_stride leads to that of the next row of the page.
  [[nodiscard]] const float* of(std::int64_t sequence, std::int64_t head, const CachePlace& at) const {
    const std::int64_t row = is_per_row ? at.row * row_stride : 0;
    return data + (is_per_row ? at.block : sequence) * batch_stride + head * head_stride + row;
  }
};

/// What elements are multiplied by: the factor, or NaN if it is infinite. Infinity * 0 is NaN, and so is a sum of
/// infinities of both signs: infinity times a finished product of rows would hide that.
[[nodiscard]] inline float multiplier(float factor) {
  return std::isinf(factor) ? std::numeric_limits<float>::quiet_NaN() : factor;
}

struct CacheLayout {
  CacheIndex cache;
  std::int64_t num_blocks = 0;  ///< pages; of a contiguous cache its rows
  std::int64_t block_size = 0;  ///< keys of a page; of a contiguous cache its capacity
  std::int64_t capacity = 0;    ///< keys that a sequence may have
  Descale k_descale;
  Descale v_descale;

  /// Rows that CacheIndex::cache_batch_idx may name.
  [[nodiscard]] std::int64_t cache_rows() const { return cache.page_table ? cache.page_table->num_rows : num_blocks; }

  // Of arrays on the host:

  [[nodiscard]] CachedSequence cached(std::int64_t index) const {
    const std::int64_t row = cache.cache_batch_idx != nullptr ? cache.cache_batch_idx[index] : index;
    if (row < 0 || row >= cache_rows()) return {row, 0, true};
    const std::int64_t length = cache.seqlens_k != nullptr ? cache.seqlens_k[index] : capacity;
    return {row, std::clamp<std::int64_t>(length, 0, capacity), length < 0};
  }

  /// Where key `key` < capacity of a sequence lies.
  [[nodiscard]] CachePlace place(std::int64_t cache_row, std::int64_t key) const {
    if (!cache.page_table) return {cache_row, key};
    const PageTable& table = *cache.page_table;
    const std::int64_t page = table.pages[cache_row * table.row_stride + key / block_size];
    return {page >= 0 && page < num_blocks ? page : -1, key % block_size};
  }
};

/// Checks the index of a cache whose keys are `k_cache`, for that many sequences. No array is read.
/// @throws Error naming the argument.
[[nodiscard]] CacheLayout make_cache_layout(const CacheIndex& cache, const Tensor& k_cache, std::int64_t num_sequences);

/// Checks the descales of the index and puts them into the layout. v_cache: null if there is none.
/// @param owner  the argument whose device is that of the call
/// @throws Error naming the argument.
void resolve_descales(CacheLayout& layout, const Tensor& k_cache, const Tensor* v_cache, std::int64_t num_sequences,
                      const char* owner);

}  // namespace attend::core
