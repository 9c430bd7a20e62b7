// A decode kernel's arguments and grid. Nothing here needs a GPU.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/decode_problem.hpp"
#include "cuda/serving/cache_args.hpp"
#include "cuda/serving/decode_variant.hpp"
#include "kernels/serving/decode_args.cuh"

namespace attend::cuda {

/// All but the storage and what DecodeGrid says, which the launch has to bring: they are 0. All rows are computed. The
/// maps of a variant with boxes are made by the driver.
[[nodiscard]] DecodeArgs decode_args(const core::DecodeProblem& p, const DecodeVariant& variant,
                                     const AddedKeys& added);

struct DecodeGrid {
  std::uint32_t blocks;       ///< as many as run at the same time: more were slower with unequal lengths
  std::uint32_t stack_nodes;  ///< of a block, in device memory
  std::size_t node_bytes;     ///< of DecodeArgs::storage
  std::size_t stack_bytes;    ///< of DecodeArgs::stack
  bool has_large_nodes;       ///< whose storage is apart from that of others
};
[[nodiscard]] DecodeGrid decode_grid(const DecodeVariant& variant, std::int64_t capacity, int num_multiprocessors);

}  // namespace attend::cuda
