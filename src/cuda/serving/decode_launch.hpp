// The arguments and the grid of a decode kernel. This code needs no GPU, but it needs the driver if the kernel uses
// tensor maps.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/decode_problem.hpp"
#include "cuda/serving/cache_args.hpp"
#include "cuda/serving/decode_variant.hpp"
#include "kernels/serving/decode_args.cuh"

namespace attend::cuda {

/// Returns the arguments of a decode kernel for all query rows. The caller must set the members storage and stack, and
/// the members whose values are in DecodeGrid, before the launch. These members are 0. If the variant loads keys with
/// TMA, the driver encodes the tensor maps.
[[nodiscard]] DecodeArgs decode_args(const core::DecodeProblem& p, const DecodeVariant& variant,
                                     const AddedKeys& added);

struct DecodeGrid {
  /// Number of blocks in the grid. All of them are resident at the same time. With more blocks, sequences of unequal
  /// length took more time.
  std::uint32_t blocks;
  std::uint32_t stack_nodes;  ///< number of stack nodes of each block in device memory
  std::size_t node_bytes;     ///< bytes of the memory for DecodeArgs::storage
  std::size_t stack_bytes;    ///< bytes of the memory for DecodeArgs::stack
  bool has_large_nodes;       ///< whether nodes are large; launches with large nodes have separate storage
};
[[nodiscard]] DecodeGrid decode_grid(const DecodeVariant& variant, std::int64_t capacity, int num_multiprocessors);

}  // namespace attend::cuda
