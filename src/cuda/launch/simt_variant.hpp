// The compile-time parameters of the kernels of simt, and the choice of their tiles.
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
  std::int32_t dbias_over_rows = 0;  ///< whether dbias is a sum over the query rows
  SimtForwardTile forward = {};
  std::array<SimtBackwardTile, 3> gradients = {};  ///< backward tiles, indexed by SimtGradient

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

/// The parameters of one backward kernel, in addition to those in Facts. They are constants of its Config.
struct SimtGradientKernel {
  SimtBackwardTile tile;
  std::int32_t has_lse_rounding = 0;

  /// Returns the number of panels of q and k in shared memory. A panel is a group of adjacent columns. If all columns
  /// fit, there is one panel; otherwise two panels alternate.
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

/// Largest number of columns of o that one block computes, on GPUs with at least 99 KB of shared memory per block.
constexpr int kSimtMostColumns = 256;

/// Returns the variant with its tiles. A block uses at most `max_smem_per_block` bytes of shared memory.
/// @param few_rows whether a forward pass uses tiles with fewer query rows. Such tiles give more blocks and fewer
///         padding rows
[[nodiscard]] SimtVariant simt_variant(const Facts& facts, bool few_rows, int max_smem_per_block);

}  // namespace attend::cuda
