// A checked CacheIndex: the size of a cache and the functions that locate its keys. Decode and append both use it.
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
  std::int64_t length;     ///< number of keys, clamped to the capacity; 0 for a dead sequence
  bool dead;               ///< true if the sequence is not computed (see CacheIndex)
};

/// Location of a row in k_cache and v_cache.
struct CachePlace {
  std::int64_t block;  ///< index into the first dimension of the cache; -1 if the row does not exist
  std::int64_t row;
};

/// Scale factors of an 8-bit cache. An element represents the number element * factor.
struct Descale {
  const float* data = nullptr;  ///< null if all factors are 1
  /// True if each row of the cache has a separate factor; false if all rows of a sequence and head share one.
  bool is_per_row = false;
  std::int64_t batch_stride = 0;
  std::int64_t head_stride = 0;
  /// Distance in elements between the factors of neighbouring rows of a page; 0 unless is_per_row.
  std::int64_t row_stride = 0;

  // The function below requires that `data` is in host memory.

  /// Returns the address of a row's factor. The factor of the next row in the page is row_stride elements further.
  [[nodiscard]] const float* of(std::int64_t sequence, std::int64_t head, const CachePlace& at) const {
    const std::int64_t row = is_per_row ? at.row * row_stride : 0;
    return data + (is_per_row ? at.block : sequence) * batch_stride + head * head_stride + row;
  }
};

/// Returns the number by which elements are multiplied: the factor, or NaN if the factor is infinite. If the factor of
/// a row is infinite, the true dot product is NaN if an element is 0, or if two products have opposite signs. Kernels
/// multiply the finished dot product by the factor. With an infinite factor this would give an infinity, so the factor
/// is replaced by NaN.
[[nodiscard]] inline float multiplier(float factor) {
  return std::isinf(factor) ? std::numeric_limits<float>::quiet_NaN() : factor;
}

struct CacheLayout {
  CacheIndex cache;
  std::int64_t num_blocks = 0;  ///< number of pages, or of rows of a contiguous cache
  std::int64_t block_size = 0;  ///< number of keys in a page, or the capacity of a contiguous cache
  std::int64_t capacity = 0;    ///< maximum number of keys of a sequence
  Descale k_descale;
  Descale v_descale;

  /// Returns the upper limit of the row numbers in CacheIndex::cache_batch_idx.
  [[nodiscard]] std::int64_t cache_rows() const { return cache.page_table ? cache.page_table->num_rows : num_blocks; }

  // The functions below require that the arrays are in host memory.

  [[nodiscard]] CachedSequence cached(std::int64_t index) const {
    const std::int64_t row = cache.cache_batch_idx != nullptr ? cache.cache_batch_idx[index] : index;
    if (row < 0 || row >= cache_rows()) return {row, 0, true};
    const std::int64_t length = cache.seqlens_k != nullptr ? cache.seqlens_k[index] : capacity;
    return {row, std::clamp<std::int64_t>(length, 0, capacity), length < 0};
  }

  /// Returns the place of key number `key` of a sequence. `key` must be less than the capacity.
  [[nodiscard]] CachePlace place(std::int64_t cache_row, std::int64_t key) const {
    if (!cache.page_table) return {cache_row, key};
    const PageTable& table = *cache.page_table;
    const std::int64_t page = table.pages[cache_row * table.row_stride + key / block_size];
    return {page >= 0 && page < num_blocks ? page : -1, key % block_size};
  }
};

/// Checks the index of a cache for `num_sequences` sequences. `k_cache` holds the keys. Reads no array.
/// @throws Error naming the argument.
[[nodiscard]] CacheLayout make_cache_layout(const CacheIndex& cache, const Tensor& k_cache, std::int64_t num_sequences);

/// Checks the scale factors in the index and stores them in the layout. `v_cache` is null if there is no such tensor.
/// @param owner  name of the argument whose device is the device of the call
/// @throws Error naming the argument.
void resolve_descales(CacheLayout& layout, const Tensor& k_cache, const Tensor* v_cache, std::int64_t num_sequences,
                      const char* owner);

}  // namespace attend::core
