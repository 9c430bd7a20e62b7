// What a backward pass of sm90_backward is made of: its tile, its grids and its scratch memory.
#pragma once

#include <cstdint>

#include "core/problem.hpp"
#include "cuda/driver/device.hpp"
#include "cuda/launch/sm90_backward_variant.hpp"
#include "kernels/sm90/sm90_backward_workspace.cuh"

namespace attend::cuda {

/// Sequences that share entries of dbias, a block each: 1 where none does, 0 without dbias.
[[nodiscard]] int sm90_backward_dbias_blocks(const core::Problem& p);

/// To the kernels all masks are block masks.
[[nodiscard]] Facts sm90_backward_facts(const core::Problem& p, bool folds_scale);

[[nodiscard]] Sm90BackwardTile sm90_backward_tile_of(const core::Problem& p);

/// Does one block of the grid take all key blocks of a head, and round its dq? Where what the blocks read again and
/// again fits into the L2 cache, and heads are so many that all multiprocessors are busy to the end. Measured:
/// docs/hopper_backward.md.
[[nodiscard]] bool sm90_backward_owns_heads(const core::Problem& p, const DeviceInfo& device);

/// Everything about a launch that follows from the problem, for the workspace and the arguments alike.
struct Sm90BackwardPlan {
  Sm90BackwardTile tile;
  std::int64_t rows;         ///< padded rows of one head
  std::int64_t row_blocks;   ///< of prepare and finish
  std::int64_t blocks;       ///< of the kernel that makes dk and dv
  std::int64_t last_blocks;  ///< of the one that makes dq, or finishes it
  std::int64_t key_tiles;    ///< of 64, whose sums are rounded at the end; 0 where there are none
  std::int64_t key_sums;     ///< floats
  Sm90BackwardWorkspace workspace;

  [[nodiscard]] static Sm90BackwardPlan of(const core::Problem& p, const Sm90BackwardVariant& v,
                                           std::int64_t multiprocessors);
};

}  // namespace attend::cuda
