// A decode kernel's arguments and grid. Nothing here needs a GPU.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/decode_problem.hpp"
#include "cuda/serving/cache_args.hpp"
#include "cuda/serving/decode_variant.hpp"
#include "kernels/serving/decode_args.cuh"

namespace attend::cuda {

/// All but the storage, which give_storage() adds.
[[nodiscard]] DecodeArgs decode_args(const core::DecodeProblem& p, const AddedKeys& added);

struct DecodeGrid {
  std::uint32_t blocks;
  std::uint32_t stack_nodes;  ///< of a block, in device memory
  std::size_t node_bytes;     ///< of DecodeArgs::storage
  std::size_t stack_bytes;    ///< of DecodeArgs::stack
};
[[nodiscard]] DecodeGrid decode_grid(const DecodeVariant& variant, std::int64_t capacity, int num_multiprocessors);

/// Both are memory of the device: `storage` zeroed once and kept from launch to launch, `stack` with anything in it.
void give_storage(DecodeArgs& args, const DecodeVariant& variant, const DecodeGrid& grid, void* storage, void* stack);

}  // namespace attend::cuda
