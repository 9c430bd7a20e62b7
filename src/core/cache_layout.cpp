#include "core/cache_layout.hpp"

#include <utility>

#include "core/problem_checks.hpp"

namespace attend::core {
namespace {

/// No entry of the table has a byte offset beyond int64.
void check_row_stride(const PageTable& table) {
  constexpr std::int64_t kMostEntries = std::int64_t{1} << 60;
  const std::int64_t most = table.num_rows > 1 ? kMostEntries / (table.num_rows - 1) : kMostEntries;
  if (table.row_stride < 0 || table.row_stride > most) {
    refuse("page_table: row_stride {}, allowed 0 to {}", table.row_stride, most);
  }
}

}  // namespace

CacheLayout make_cache_layout(const CacheIndex& cache, const Tensor& k_cache, std::int64_t num_sequences) {
  CacheLayout layout = {cache, k_cache.shape[0], k_cache.shape[2], k_cache.shape[2]};
  if (cache.page_table) {
    const PageTable& table = *cache.page_table;
    for (const auto& [name, value] : {std::pair{"num_rows", table.num_rows}, {"pages_per_row", table.pages_per_row}}) {
      if (value < 0 || value > kMaxLength) refuse("page_table: {} {}, allowed 0 to {}", name, value, kMaxLength);
    }
    check_row_stride(table);
    if (table.pages == nullptr && table.num_rows * table.pages_per_row != 0) refuse("page_table: null pages");
    if (layout.block_size == 0 && table.pages_per_row != 0) refuse("k_cache: page_size 0, allowed >= 1");
    if (layout.block_size * table.pages_per_row > kMaxLength) {
      refuse("page_table: {} pages of {} keys a row, allowed at most {} keys", table.pages_per_row, layout.block_size,
             kMaxLength);
    }
    layout.capacity = layout.block_size * table.pages_per_row;
  }
  if (cache.cache_batch_idx == nullptr && num_sequences > layout.cache_rows()) {
    refuse("{}: {} rows for {} sequences without cache_batch_idx, allowed at least one row a sequence",
           cache.page_table ? "page_table" : "k_cache", layout.cache_rows(), num_sequences);
  }
  return layout;
}

}  // namespace attend::core
