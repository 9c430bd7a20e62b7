#include "core/cache_layout.hpp"

#include <utility>

#include "core/dtype_traits.hpp"
#include "core/problem_checks.hpp"

namespace attend::core {
namespace {

/// Checks that the byte offset of every entry of the table fits into int64.
void check_row_stride(const PageTable& table) {
  constexpr std::int64_t kMostEntries = std::int64_t{1} << 60;
  const std::int64_t most = table.num_rows > 1 ? kMostEntries / (table.num_rows - 1) : kMostEntries;
  if (table.row_stride < 0 || table.row_stride > most) {
    refuse("page_table: row_stride {}, allowed 0 to {}", table.row_stride, most);
  }
}

Descale resolved_descale(const char* name, const ConstTensor& passed, const Tensor& cache, const CacheLayout& layout,
                         std::int64_t num_sequences) {
  const Tensor t = input_view(passed);
  const auto fits = [&](std::size_t dim, std::int64_t size) { return t.shape[dim] == 1 || t.shape[dim] == size; };
  const bool fits_heads = fits(1, cache.shape[1]) && t.shape[3] == 1;
  const bool is_per_row = t.shape[0] == layout.num_blocks && t.shape[2] == layout.block_size && fits_heads;
  const bool is_per_sequence = fits(0, num_sequences) && t.shape[2] == 1 && fits_heads;
  if (!is_per_row && !is_per_sequence) {
    refuse("{}: shape {}, allowed (1 or {}, 1 or {}, 1, 1) for sequences and heads, or ({}, 1 or {}, {}, 1) for rows",
           name, shape_text(t.shape), num_sequences, cache.shape[1], layout.num_blocks, cache.shape[1],
           layout.block_size);
  }
  if (is_per_row && is_per_sequence && t.shape[0] > 1) {
    refuse(
        "{}: shape {} is ambiguous with {} sequences and as many pages or cache rows of one key, allowed (1, 1 or {}, "
        "1, 1)",
        name, shape_text(t.shape), num_sequences, cache.shape[1]);
  }
  const auto stride = [&](std::size_t dim) { return t.shape[dim] == 1 ? 0 : t.stride[dim]; };
  return {static_cast<const float*>(t.data), !is_per_sequence, stride(0), stride(1), stride(2)};
}

}  // namespace

CacheLayout make_cache_layout(const CacheIndex& cache, const Tensor& k_cache, std::int64_t num_sequences) {
  CacheLayout layout = {cache, k_cache.shape[0], k_cache.shape[2], k_cache.shape[2], {}, {}};
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
    refuse("{}: {} rows for {} sequences without cache_batch_idx, allowed at least one row per sequence",
           cache.page_table ? "page_table" : "k_cache", layout.cache_rows(), num_sequences);
  }
  return layout;
}

void resolve_descales(CacheLayout& layout, const Tensor& k_cache, const Tensor* v_cache, std::int64_t num_sequences,
                      const char* owner) {
  const auto resolve = [&](const char* name, const char* cache_name, const std::optional<ConstTensor>& passed,
                           const Tensor* cache) -> Descale {
    if (!passed) return {};
    if (cache == nullptr) refuse("{}: given without {}, allowed with it only", name, cache_name);
    if (!is_quantized(cache->dtype)) {
      refuse("{}: given with a {} of {}, allowed with f8e4m3 and i8", name, cache_name, dtype_name(cache->dtype));
    }
    if (passed->dtype != DType::kF32) refuse("{}: dtype {}, allowed f32", name, dtype_name(passed->dtype));
    check_tensor(name, input_view(*passed), k_cache.device, owner);
    return resolved_descale(name, *passed, *cache, layout, num_sequences);
  };
  layout.k_descale = resolve("k_descale", "k_cache", layout.cache.k_descale, &k_cache);
  layout.v_descale = resolve("v_descale", "v_cache", layout.cache.v_descale, v_cache);
  if (v_cache == nullptr) layout.v_descale = layout.k_descale;
}

}  // namespace attend::core
