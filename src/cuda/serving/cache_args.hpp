// Kernel arguments that describe a cache.
#pragma once

#include "core/cache_layout.hpp"
#include "kernels/serving/cache_args.cuh"

namespace attend::cuda {

/// New rows that are appended to a cache before it is read. Sequence s gets offsets[s + 1] - offsets[s] rows, or `each`
/// rows if `offsets` is null.
struct AddedKeys {
  const std::int32_t* offsets = nullptr;
  std::int64_t each = 0;
};

[[nodiscard]] CacheArgs cache_args(const core::CacheLayout& layout, const AddedKeys& added = {});

}  // namespace attend::cuda
