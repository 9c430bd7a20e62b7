// The plan of a backward pass of sm90_backward: its tile, its grids and its scratch memory.
#pragma once

#include <cstdint>

#include "core/problem.hpp"
#include "cuda/driver/device.hpp"
#include "cuda/launch/sm90_backward_variant.hpp"
#include "kernels/sm90/sm90_backward_workspace.cuh"

namespace attend::cuda {

/// Returns the number of blocks that share an entry of dbias, one block per sequence: 1 if entries are not shared, 0
/// without dbias.
[[nodiscard]] int sm90_backward_dbias_blocks(const core::Problem& p);

/// Returns the facts of a problem. The kernels treat all masks as block masks.
[[nodiscard]] Facts sm90_backward_facts(const core::Problem& p, bool folds_scale);

[[nodiscard]] Sm90BackwardTile sm90_backward_tile_of(const core::Problem& p);

/// Returns whether one block processes all key blocks of a head and rounds its dq. This is faster if two conditions
/// hold: the data that the blocks read repeatedly fits in the L2 cache, and there are enough heads to keep all
/// multiprocessors busy. Measured: docs/hopper_backward.md.
[[nodiscard]] bool sm90_backward_owns_heads(const core::Problem& p, const DeviceInfo& device);

/// Launch parameters that follow from the problem. The workspace and the arguments share them.
struct Sm90BackwardPlan {
  Sm90BackwardTile tile;
  std::int64_t rows;         ///< padded rows of one head
  std::int64_t row_blocks;   ///< blocks of prepare and finish
  std::int64_t blocks;       ///< blocks of the kernel for dk and dv
  std::int64_t last_blocks;  ///< blocks of the kernel that computes or finishes dq
  /// Tiles of 64 keys whose sums sm90_backward_finish_keys rounds; 0 if dk and dv are not added up in memory.
  std::int64_t key_tiles;
  std::int64_t key_sums;  ///< size of the sums of dk and dv, in floats
  Sm90BackwardWorkspace workspace;

  [[nodiscard]] static Sm90BackwardPlan of(const core::Problem& p, const Sm90BackwardVariant& v,
                                           std::int64_t multiprocessors);
};

}  // namespace attend::cuda
