// A checked CacheIndex: the size of a cache and the location of its keys. Shared by the problems of decode and append.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "attend/serving.hpp"

namespace attend::core {

/// State of a sequence in a cache.
struct CachedSequence {
  std::int64_t cache_row;  ///< row of a contiguous cache, or row of the page table
  std::int64_t length;     ///< clamped to the capacity; 0 for a dead sequence
  bool dead;               ///< see CacheIndex
};

/// A row of k_cache and v_cache.
struct CachePlace {
  std::int64_t block;  ///< index into the first dimension; -1: the place does not exist
  std::int64_t row;
};

/// Scale factors of an 8-bit cache: an element stands for the number element * factor.
struct Descale {
  const float* data = nullptr;  ///< null: all factors are 1
  bool is_per_row = false;      ///< true: one factor for each row of the cache; false: one for each sequence
  std::int64_t batch_stride = 0;
  std::int64_t head_stride = 0;
  std::int64_t row_stride = 0;  ///< from one row of a page to the next; 0 if not per row

  // Requires data on the host:

  /// Returns the address of a row's factor. The factor of the page's next row is row_stride further.
  [[nodiscard]] const float* of(std::int64_t sequence, std::int64_t head, const CachePlace& at) const {
    const std::int64_t row = is_per_row ? at.row * row_stride : 0;
    return data + (is_per_row ? at.block : sequence) * batch_stride + head * head_stride + row;
  }
};

/// Returns the multiplier of elements: the factor, or NaN if the factor is infinite. Infinity * 0 is NaN, and so is a
/// sum of infinities of both signs. Multiplying a finished dot product by infinity would hide that.
[[nodiscard]] inline float multiplier(float factor) {
  return std::isinf(factor) ? std::numeric_limits<float>::quiet_NaN() : factor;
}

struct CacheLayout {
  CacheIndex cache;
  std::int64_t num_blocks = 0;  ///< number of pages, or of rows of a contiguous cache
  std::int64_t block_size = 0;  ///< keys of a page, or capacity of a contiguous cache
  std::int64_t capacity = 0;    ///< maximum keys of a sequence
  Descale k_descale;
  Descale v_descale;

  /// Returns the number of rows that CacheIndex::cache_batch_idx may name.
  [[nodiscard]] std::int64_t cache_rows() const { return cache.page_table ? cache.page_table->num_rows : num_blocks; }

  // These require arrays on the host:

  [[nodiscard]] CachedSequence cached(std::int64_t index) const {
    const std::int64_t row = cache.cache_batch_idx != nullptr ? cache.cache_batch_idx[index] : index;
    if (row < 0 || row >= cache_rows()) return {row, 0, true};
    const std::int64_t length = cache.seqlens_k != nullptr ? cache.seqlens_k[index] : capacity;
    return {row, std::clamp<std::int64_t>(length, 0, capacity), length < 0};
  }

  /// Returns the place of key `key` < capacity of a sequence.
  [[nodiscard]] CachePlace place(std::int64_t cache_row, std::int64_t key) const {
    if (!cache.page_table) return {cache_row, key};
    const PageTable& table = *cache.page_table;
    const std::int64_t page = table.pages[cache_row * table.row_stride + key / block_size];
    return {page >= 0 && page < num_blocks ? page : -1, key % block_size};
  }
};

/// Checks the index of a cache whose keys are `k_cache`, for `num_sequences` sequences. Reads no array.
/// @throws Error naming the argument.
[[nodiscard]] CacheLayout make_cache_layout(const CacheIndex& cache, const Tensor& k_cache, std::int64_t num_sequences);

/// Checks the descales of the index and sets them in the layout. v_cache: null if there is none.
/// @param owner  the argument whose device is that of the call
/// @throws Error naming the argument.
void resolve_descales(CacheLayout& layout, const Tensor& k_cache, const Tensor* v_cache, std::int64_t num_sequences,
                      const char* owner);

}  // namespace attend::core
