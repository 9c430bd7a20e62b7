// Which tiles simt takes for which facts.
#include "cuda/launch/simt_variant.hpp"

#include <algorithm>

namespace attend::cuda {
namespace {

/// Whatever has no option that wants registers.
bool is_plain(const Facts& facts) {
  return facts.aligned != 0 && (facts.loop_options() & ~option::kAddsToOutputs) == 0;
}

/// At most 99 KB, what a block has from sm_80 on, or 64 KB, what it has on sm_75. few_rows: more blocks, fewer rows
/// that do not exist.
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
  if (!is_plain(facts)) tile.min_blocks = 2;  // options want registers
  return tile;
}

constexpr int kWide = 128, kNarrow = 64;  // columns of a block's gradients, at most

/// What differs from tile to tile of a gradient; the rest follows from the facts.
struct Shape {
  int block_m, block_n;
  int threads = 128;
  int threads_x = 16;
  int most_columns = kWide;
};

/// The first that fits into a block's shared memory of these: tiles of 64 x 64 up to 64 columns, of 64 owned and 32
/// streamed rows above or where options want registers. Two blocks fit on a multiprocessor of 227 KB, but for dk and dv
/// from 121 columns on, which take 116 KB. Where columns come in panels and options keep something for every score, the
/// sums go to twice the threads, or else each block has half the columns.
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
