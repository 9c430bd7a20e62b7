// What kernels are told of a cache, and of the types of tensors.
#pragma once

#include "core/cache_layout.hpp"
#include "kernels/serving/cache_args.cuh"

namespace attend::cuda {

/// New rows that a cache gets before it is read. Sequence s has offsets[s + 1] - offsets[s] of them, or, without
/// offsets, `each`.
struct AddedKeys {
  const std::int32_t* offsets = nullptr;
  std::int64_t each = 0;
};

[[nodiscard]] CacheArgs cache_args(const core::CacheLayout& layout, const AddedKeys& added = {});

}  // namespace attend::cuda
