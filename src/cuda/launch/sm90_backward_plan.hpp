// The plan of a backward pass of sm90_backward: the tile, the grids and the scratch memory.
#pragma once

#include <cstdint>

#include "core/problem.hpp"
#include "cuda/driver/device.hpp"
#include "cuda/launch/sm90_backward_variant.hpp"
#include "kernels/sm90/sm90_backward_workspace.cuh"

namespace attend::cuda {

/// Returns the number of blocks that add to the same entry of dbias. If the batch dimension of dbias is broadcast, this
/// is one block per sequence. Returns 1 if each entry belongs to one block, and 0 without dbias.
[[nodiscard]] int sm90_backward_dbias_blocks(const core::Problem& p);

/// Returns the compile-time parameters for a problem. A boolean mask is replaced by a block mask.
[[nodiscard]] Facts sm90_backward_facts(const core::Problem& p, bool folds_scale);

[[nodiscard]] Sm90BackwardTile sm90_backward_tile_of(const core::Problem& p);

/// Returns whether each block processes all key blocks of one head. The block can then write the rounded dq itself.
/// This is faster if two conditions hold. The data that the blocks read repeatedly must fit in the L2 cache. There must
/// be enough heads to occupy all multiprocessors. Measured: docs/hopper_backward.md.
[[nodiscard]] bool sm90_backward_owns_heads(const core::Problem& p, const DeviceInfo& device);

/// Returns whether persistent blocks of 128 keys are faster at up to 64 columns than blocks of 192 keys, each of which
/// processes one key block. They are slower per key but leave fewer multiprocessors idle: the last wave has smaller
/// blocks, and without a mask its work is divided evenly.
[[nodiscard]] bool sm90_backward_prefers_persistent(const core::Problem& p, const DeviceInfo& device);

/// Launch parameters that are computed from a problem. Both the workspace and the kernel arguments depend on them.
struct Sm90BackwardPlan {
  Sm90BackwardTile tile;
  std::int64_t rows;         ///< query rows of one head, including padding rows
  std::int64_t row_blocks;   ///< number of blocks of the prepare kernel, and also of the finish kernel
  std::int64_t blocks;       ///< number of blocks of the kernel that computes dk and dv
  std::int64_t last_blocks;  ///< number of blocks of the last kernel, which computes dq or rounds it
  /// Number of tiles of 64 keys whose dk and dv the kernel sm90_backward_finish_keys rounds. 0 if dk and dv are not
  /// summed in memory.
  std::int64_t key_tiles;
  std::int64_t key_sums;  ///< number of floats in the sums of dk and dv
  Sm90BackwardWorkspace workspace;

  [[nodiscard]] static Sm90BackwardPlan of(const core::Problem& p, const Sm90BackwardVariant& v,
                                           std::int64_t multiprocessors);
};

}  // namespace attend::cuda
