#include "cuda/serving/cache_args.hpp"

#include <fmt/format.h>

#include <bit>

#include "attend/error.hpp"

namespace attend::cuda {
namespace {

DescaleArgs descale_args(const core::Descale& descale) {
  const bool per_row = descale.is_per_row;
  return {.data = descale.data,
          .sequence_stride = per_row ? 0 : descale.batch_stride,
          .block_stride = per_row ? descale.batch_stride : 0,
          .row_stride = descale.row_stride,
          .head_stride = descale.head_stride};
}

}  // namespace

CacheArgs cache_args(const core::CacheLayout& layout, const AddedKeys& added) {
  const CacheIndex& cache = layout.cache;
  const auto block = static_cast<std::uint64_t>(layout.block_size);
  return {.seqlens_k = cache.seqlens_k,
          .cache_batch_idx = cache.cache_batch_idx,
          .cache_leftpad = cache.cache_leftpad,
          .pages = cache.page_table ? cache.page_table->pages : nullptr,
          .added_offsets = added.offsets,
          .added = added.each,
          .table_row_stride = cache.page_table ? cache.page_table->row_stride : 0,
          .cache_rows = layout.cache_rows(),
          .num_blocks = layout.num_blocks,
          .block_size = layout.block_size,
          .capacity = layout.capacity,
          .k_descale = descale_args(layout.k_descale),
          .v_descale = descale_args(layout.v_descale),
          .is_paged = cache.page_table ? 1U : 0U,
          .block_shift = std::has_single_bit(block) ? static_cast<uint32>(std::countr_zero(block)) : kNoBlockShift};
}

}  // namespace attend::cuda
