// What simt's kernels are compiled for, and which tiles they take for which facts.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "cuda/launch/fields.hpp"
#include "kernels/simt/simt_shape.cuh"

namespace attend::cuda {

struct SimtVariant : Facts {
  std::int32_t has_dbias = 0;
  ElementType dbias = ElementType::kF32;
  std::int32_t dbias_over_rows = 0;  ///< it is a sum over the rows
  SimtForwardTile forward = {};
  std::array<SimtBackwardTile, 3> gradients = {};  ///< of SimtGradient

  [[nodiscard]] const SimtBackwardTile& tile(SimtGradient g) const { return gradients[static_cast<std::size_t>(g)]; }
};

inline constexpr Field<SimtForwardTile> kSimtForwardFields[] = {
    {"threads", "kThreads", number<&SimtForwardTile::threads>},
    {"block_m", "kBlockM", number<&SimtForwardTile::block_m>},
    {"block_n", "kBlockN", number<&SimtForwardTile::block_n>},
    {nullptr, "kSmemBytes", number<&SimtForwardTile::smem_bytes>},
    {nullptr, "kColumnParts", number<&SimtForwardTile::columns, &ColumnParts::count>},
    {nullptr, "kPanels", number<&SimtForwardTile::panels, &ColumnParts::count>},
    {nullptr, "kPanel", number<&SimtForwardTile::panels, &ColumnParts::width>},
    {nullptr, "kCols", number<&SimtForwardTile::columns, &ColumnParts::width>},
    {"lanes_x", "kLanesX", number<&SimtForwardTile::lanes_x>},
    {"min_blocks", nullptr, unread<&SimtForwardTile::min_blocks>},
};
static_assert(covers<SimtForwardTile>(kSimtForwardFields));

/// All that the Config of a kernel of the backward pass says beyond the facts, if it has tiles.
struct SimtGradientKernel {
  SimtBackwardTile tile;
  std::int32_t has_lse_rounding = 0;

  /// Of q and k in shared memory: one, which stays, or two, which come in turns.
  [[nodiscard]] int panels() const { return tile.resident != 0 ? 1 : 2; }
};

inline constexpr Field<SimtGradientKernel> kSimtGradientFields[] = {
    {"threads", "kThreads", number<&SimtGradientKernel::tile, &SimtBackwardTile::threads>},
    {"block_m", "kBlockM", number<&SimtGradientKernel::tile, &SimtBackwardTile::block_m>},
    {"block_n", "kBlockN", number<&SimtGradientKernel::tile, &SimtBackwardTile::block_n>},
    {nullptr, "kSmemBytes", number<&SimtGradientKernel::tile, &SimtBackwardTile::smem_bytes>},
    {nullptr, "kColumnParts", number<&SimtGradientKernel::tile, &SimtBackwardTile::parts>},
    {nullptr, "kHasLseRounding", flag<&SimtGradientKernel::has_lse_rounding>},
    {nullptr, "kPanels", number<&SimtGradientKernel::panels>},
    {nullptr, nullptr, unread<&SimtGradientKernel::tile, &SimtBackwardTile::resident>},
    {nullptr, "kPanel", number<&SimtGradientKernel::tile, &SimtBackwardTile::panel>},
    {nullptr, "kCols0", number<&SimtGradientKernel::tile, &SimtBackwardTile::cols_0>},
    {nullptr, "kCols1", number<&SimtGradientKernel::tile, &SimtBackwardTile::cols_1>},
    {"threads_x", "kThreadsX", number<&SimtGradientKernel::tile, &SimtBackwardTile::threads_x>},
    {"min_blocks", nullptr, unread<&SimtGradientKernel::tile, &SimtBackwardTile::min_blocks>},
    {nullptr, nullptr, unread<&SimtGradientKernel::tile, &SimtBackwardTile::gradient>},
    {nullptr, nullptr, unread<&SimtGradientKernel::tile, &SimtBackwardTile::head_dim>},
    {nullptr, nullptr, unread<&SimtGradientKernel::tile, &SimtBackwardTile::head_dim_v>},
};
static_assert(covers<SimtGradientKernel>(kSimtGradientFields));

/// Columns of o in one block, at most: on GPUs with 99 KB of shared memory and more.
constexpr int kSimtMostColumns = 256;

/// The tiles for the facts, within so many bytes of shared memory.
/// @param few_rows  forward: more blocks, with fewer rows that do not exist
[[nodiscard]] SimtVariant simt_variant(const Facts& facts, bool few_rows, int max_smem_per_block);

}  // namespace attend::cuda
