// Chooses the tiles of simt.
#include "cuda/launch/simt_variant.hpp"

#include <algorithm>

namespace attend::cuda {
namespace {

/// Returns whether all tensors are aligned to 16 bytes and no option needs extra registers.
bool is_plain(const Facts& facts) {
  return facts.aligned != 0 && (facts.loop_options() & ~option::kAddsToOutputs) == 0;
}

/// Returns the forward tile. It needs at most 99 KB of shared memory, which every GPU since sm_80 has, or 64 KB on
/// sm_75. If few_rows is set, the tile has fewer query rows, which gives more blocks and fewer padding rows.
SimtForwardTile forward_tile(const Facts& facts, bool few_rows, int max_smem_per_block) {
  constexpr int kWidestPanel = 128, kNarrowPanel = 64;
  const bool one_panel = facts.head_dim <= kWidestPanel;
  SimtForwardTile tile = {.block_m = 64,
                          .block_n = 64,
                          .threads = 128,
                          .lanes_x = 8,
                          .min_blocks = 3,
                          .panels = ColumnParts::of(facts.head_dim, one_panel ? kWidestPanel : kNarrowPanel, 8),
                          .columns = ColumnParts::of(facts.head_dim_v, kSimtMostColumns, 32)};
  if (tile.panels.width > 64 || tile.columns.width > 64) {
    tile.block_n = 32;
    tile.min_blocks = 2;
  }
  if (few_rows && facts.head_dim_v <= 128) {
    tile.block_m = 32;
    tile.block_n = 64;
    tile.lanes_x = 16;
    tile.min_blocks = 2;
    tile.columns = ColumnParts::of(facts.head_dim_v, kSimtMostColumns, 64);
  }
  if (tile.smem_bytes() > max_smem_per_block) {
    tile.block_m = 64;
    tile.block_n = 32;
    tile.lanes_x = 8;
    tile.min_blocks = 2;
    tile.panels = ColumnParts::of(facts.head_dim, kNarrowPanel, 8);
    tile.columns = ColumnParts::of(facts.head_dim_v, 2 * kNarrowPanel, 32);
  }
  if (!is_plain(facts)) tile.min_blocks = 2;  // options need registers, so fewer blocks are resident
  return tile;
}

constexpr int kWide = 128, kNarrow = 64;  // largest number of gradient columns that one block computes

/// The members in which the tiles of a gradient differ. All other members are computed from the compile-time
/// parameters.
struct Shape {
  int block_m, block_n;
  int threads = 128;
  int threads_x = 16;
  int most_columns = kWide;
};

/// Returns the first candidate that fits in the shared memory of a block. A kernel owns a tile of keys or query rows
/// and streams over tiles of the other operand. Up to 64 columns, the first candidate has 64 owned and 64 streamed
/// rows. With more columns, or if options need registers, it has 64 owned and 32 streamed rows. On a GPU with 227 KB
/// per multiprocessor, two blocks are resident, except for dk and dv from 121 columns on, which need 116 KB per block.
/// If the columns are processed in panels and an option stores a value per score, the candidate has twice the threads.
/// If that candidate does not fit, each block computes half of the columns.
SimtBackwardTile backward_tile(const Facts& facts, SimtGradient gradient, int max_smem_per_block) {
  const int widest = std::max(facts.head_dim, facts.head_dim_v);
  bool resident = widest <= kWide;
  const auto make = [&](const Shape& shape) {
    const int parts = ceil_div(widest, shape.most_columns);
    const auto cols = [&](int head_dim) { return round_up(ceil_div(head_dim, parts), 4 * shape.threads_x); };
    return SimtBackwardTile{.gradient = gradient,
                            .head_dim = facts.head_dim,
                            .head_dim_v = facts.head_dim_v,
                            .block_m = shape.block_m,
                            .block_n = shape.block_n,
                            .threads = shape.threads,
                            .threads_x = shape.threads_x,
                            .min_blocks = shape.threads > 128 ? 1 : 2,
                            .resident = resident,
                            .panel = 64,
                            .parts = gradient == SimtGradient::kTerms ? 1 : parts,
                            .cols_0 = cols(facts.head_dim),
                            .cols_1 = cols(facts.head_dim_v)};
  };
  const bool owns_keys = gradient != SimtGradient::kQueries;
  const bool crowded = facts.score().transforms || facts.score().drops;
  Shape long_side_owned = owns_keys ? Shape{.block_m = 32, .block_n = 64} : Shape{.block_m = 64, .block_n = 32};
  constexpr Shape kSmall = {.block_m = 32, .block_n = 32, .threads = 64, .threads_x = 8};
  SimtBackwardTile tile = make(long_side_owned);
  if (widest <= 64 && is_plain(facts)) tile = make({.block_m = 64, .block_n = 64});
  if (!resident && crowded) {
    tile = make({.block_m = 64, .block_n = 64, .threads = 256});
    long_side_owned.most_columns = kNarrow;
    if (tile.smem_bytes() > max_smem_per_block) tile = make(long_side_owned);
  }
  if (tile.smem_bytes() > max_smem_per_block) tile = make(kSmall);
  if (tile.smem_bytes() > max_smem_per_block) {
    resident = false;
    tile = make(kSmall);
  }
  return tile;
}

}  // namespace

SimtVariant simt_variant(const Facts& facts, bool few_rows, int max_smem_per_block) {
  SimtVariant variant = {facts};
  if (facts.is_backward == 0) {
    variant.forward = forward_tile(facts, few_rows, max_smem_per_block);
    return variant;
  }
  using enum SimtGradient;
  for (const SimtGradient gradient : {kKeysValues, kQueries, kTerms}) {
    variant.gradients[static_cast<std::size_t>(gradient)] = backward_tile(facts, gradient, max_smem_per_block);
  }
  return variant;
}

}  // namespace attend::cuda
