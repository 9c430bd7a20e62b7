// Kernel arguments that describe a key-value cache.
#pragma once

#include "core/cache_layout.hpp"
#include "kernels/serving/cache_args.cuh"

namespace attend::cuda {

/// Keys that an append writes to a cache before the cache is read. Sequence s gets offsets[s + 1] - offsets[s] new
/// keys. If `offsets` is null, every sequence gets `each` new keys.
struct AddedKeys {
  const std::int32_t* offsets = nullptr;
  std::int64_t each = 0;
};

[[nodiscard]] CacheArgs cache_args(const core::CacheLayout& layout, const AddedKeys& added = {});

}  // namespace attend::cuda
