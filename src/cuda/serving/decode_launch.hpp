// Arguments and grid of a decode kernel. This code needs no GPU, except that the driver encodes tensor maps.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/decode_problem.hpp"
#include "cuda/serving/cache_args.hpp"
#include "cuda/serving/decode_variant.hpp"
#include "kernels/serving/decode_args.cuh"

namespace attend::cuda {

/// Returns the arguments, except storage, stack and the values of DecodeGrid, which are 0 and which the launch must
/// set. The arguments select all rows. For a variant with boxes, the driver encodes the tensor maps.
[[nodiscard]] DecodeArgs decode_args(const core::DecodeProblem& p, const DecodeVariant& variant,
                                     const AddedKeys& added);

struct DecodeGrid {
  /// The number of blocks that run at the same time. More blocks were slower with unequal lengths.
  std::uint32_t blocks;
  std::uint32_t stack_nodes;  ///< stack nodes per block in device memory
  std::size_t node_bytes;     ///< size of DecodeArgs::storage
  std::size_t stack_bytes;    ///< size of DecodeArgs::stack
  bool has_large_nodes;       ///< large nodes have separate storage
};
[[nodiscard]] DecodeGrid decode_grid(const DecodeVariant& variant, std::int64_t capacity, int num_multiprocessors);

}  // namespace attend::cuda
