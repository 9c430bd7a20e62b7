// What simt's kernels are compiled for, and which tiles they take for which facts.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/launch/facts.hpp"
#include "kernels/simt/simt_shape.cuh"

namespace attend::cuda {

struct SimtVariant : Facts {
  std::int32_t has_dbias = 0;
  ElementType dbias = ElementType::kF32;
  std::int32_t dbias_over_rows = 0;  ///< it is a sum over the rows
  SimtForwardTile forward = {};
  SimtBackwardTile gradients[3] = {};  ///< of SimtGradient

  [[nodiscard]] const SimtBackwardTile& tile(SimtGradient g) const { return gradients[static_cast<std::size_t>(g)]; }
};

/// Columns of o in one block, at most: on GPUs with 99 KB of shared memory and more.
constexpr int kSimtMostColumns = 256;

/// The tiles for the facts, within so many bytes of shared memory.
/// @param few_rows  forward: more blocks, with fewer rows that do not exist
[[nodiscard]] SimtVariant simt_variant(const Facts& facts, bool few_rows, int max_smem_per_block);

}  // namespace attend::cuda
