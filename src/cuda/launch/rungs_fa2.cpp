// Rung 08, which has the fastest float32 kernels of the ladder on CUDA cores.
#include <algorithm>
#include <iterator>

#include "cuda/launch/rung.hpp"
#include "kernels/attention/work.cuh"
#include "kernels/ladder/08_fa2_shape.cuh"

namespace attend::cuda {
namespace {

/// The tiles for a head_dim of at most `columns`: `tall` for many query rows, `low` for few query rows.
struct ForwardTiles {
  int columns;
  Fa2ForwardTile tall, low;
};
constexpr ForwardTiles kForwardTiles[] = {
    {.columns = 32,
     .tall = {.block_m = 128, .block_n = 64, .threads = 128, .lanes_x = 8, .min_blocks = 3},
     .low = {.block_m = 64, .block_n = 64, .threads = 128, .lanes_x = 8, .min_blocks = 4}},
    {.columns = 64,
     .tall = {.block_m = 128, .block_n = 64, .threads = 128, .lanes_x = 8, .min_blocks = 2},
     .low = {.block_m = 64, .block_n = 64, .threads = 128, .lanes_x = 16, .min_blocks = 3}},
    {.columns = 96,
     .tall = {.block_m = 128, .block_n = 32, .threads = 128, .lanes_x = 8, .min_blocks = 2},
     .low = {.block_m = 64, .block_n = 32, .threads = 128, .lanes_x = 8, .min_blocks = 2}},
    {.columns = 128,
     .tall = {.block_m = 128, .block_n = 64, .threads = 256, .lanes_x = 16, .min_blocks = 1},
     .low = {.block_m = 64, .block_n = 32, .threads = 128, .lanes_x = 8, .min_blocks = 2}},
};

struct BackwardTile {
  int columns;
  Fa2BackwardTile tile;
};
constexpr BackwardTile kBackwardTiles[] = {
    {.columns = 32, .tile = {.block_m = 64, .block_n = 64, .threads = 128, .threads_x = 8, .min_blocks = 3}},
    {.columns = 64, .tile = {.block_m = 64, .block_n = 64, .threads = 128, .threads_x = 16, .min_blocks = 2}},
    {.columns = 96, .tile = {.block_m = 32, .block_n = 32, .threads = 64, .threads_x = 8, .min_blocks = 3}},
    {.columns = 128, .tile = {.block_m = 64, .block_n = 64, .threads = 256, .threads_x = 16, .min_blocks = 1}},
};
constexpr Fa2BackwardTile kSmallBackwardTile = {
    .block_m = 32, .block_n = 32, .threads = 128, .threads_x = 16, .min_blocks = 2};

/// Returns the first row of the table whose `columns` is at least head_dim. If there is none, returns the last row.
template <class Row, std::size_t kRows>
const Row& row_of(const Row (&table)[kRows], int head_dim) {
  return *std::find_if(std::begin(table), std::end(table) - 1, [&](const Row& row) { return head_dim <= row.columns; });
}

/// Returns the tall tile if there are enough query rows and enough shared memory. Each of its threads computes 8 x 8 or
/// 8 x 4 scores. Otherwise returns the low tile, which gives more blocks.
Fa2ForwardTile forward_tile(const RungConfig& config) {
  const auto& [columns, tall, low] = row_of(kForwardTiles, config.head_dim);
  const bool fits = tall.smem_bytes(config.head_dim) <= config.max_smem_per_block;
  return config.many_rows && fits ? tall : low;
}

Fa2BackwardTile backward_tile(const RungConfig& config) {
  const Fa2BackwardTile& tile = row_of(kBackwardTiles, config.head_dim).tile;
  const bool fits = tile.smem_bytes(config.head_dim) <= config.max_smem_per_block;
  return fits ? tile : kSmallBackwardTile;
}

// The next two functions unpack all members of a tile. If a member is added to the tile, they fail to compile until
// they handle it.

std::vector<Step> fa2_forward(const RungConfig& config) {
  const Fa2ForwardTile tile = forward_tile(config);
  const auto& [block_m, block_n, threads, lanes_x, min_blocks] = tile;
  return {{.tile = {.block_m = block_m,
                    .block_n = block_n,
                    .threads = threads,
                    .smem_bytes = tile.smem_bytes(config.head_dim),
                    .min_blocks = min_blocks},
           .constants = {{"kLanesX", lanes_x}}}};
}

std::vector<Step> fa2_backward(const RungConfig& config) {
  const Fa2BackwardTile tile = backward_tile(config);
  const auto& [block_m, block_n, threads, threads_x, min_blocks] = tile;
  return {{.function = "fa2_backward_prepare", .tile = {.block_m = kSavedRowsTile, .block_n = 1, .threads = 256}},
          {.function = "fa2_backward",
           .grid = Grid::kKeyTiles,
           .tile = {.block_m = block_m,
                    .block_n = block_n,
                    .threads = threads,
                    .smem_bytes = tile.smem_bytes(config.head_dim),
                    .min_blocks = min_blocks},
           .constants = {{"kThreadsX", threads_x}}}};
}

/// Returns the size in bytes of the row statistics that the backward pass saves. The rows of each head are padded to
/// full tiles.
std::size_t workspace(const core::Problem& p) {
  if (!p.is_backward) return 0;
  const std::int64_t rows = num_tiles(p.max_seqlen_q, kSavedRowsTile) * kSavedRowsTile;
  return static_cast<std::size_t>(p.num_sequences * p.num_heads_q * rows) * sizeof(Fa2SavedRow);
}

}  // namespace

std::vector<Rung> fa2_rungs() {
  return {
      {.number = 8,
       .name = "fa2",
       .description = "rung 08: float32 on CUDA cores, register tiles and asynchronous copies",
       .backward_source = "ladder/08_fa2_backward.cuh",
       .max_head_dim = 128,  // the largest `columns` in the tables
       .folds_scale = true,
       .deterministic_backward = false,
       .tflops = 44,
       .instructions = &Arch::cp_async,
       .forward = fa2_forward,
       .backward = fa2_backward,
       .workspace = workspace},
  };
}

}  // namespace attend::cuda
