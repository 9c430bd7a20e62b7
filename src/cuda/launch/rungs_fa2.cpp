// Rung 08: float32 on CUDA cores, as fast as they go.
#include "cuda/launch/rung.hpp"
#include "kernels/attention/work.cuh"
#include "kernels/ladder/08_fa2_shape.cuh"

namespace attend::cuda {
namespace {

struct ForwardTiles {
  Fa2ForwardTile tall, low;
};
constexpr ForwardTiles kForwardTiles[] = {{{128, 64, 128, 8, 3}, {64, 64, 128, 8, 4}},    // head_dim to 32
                                          {{128, 64, 128, 8, 2}, {64, 64, 128, 16, 3}},   // 64
                                          {{128, 32, 128, 8, 2}, {64, 32, 128, 8, 2}},    // 96
                                          {{128, 64, 256, 16, 1}, {64, 32, 128, 8, 2}}};  // 128
constexpr Fa2BackwardTile kBackwardTiles[] = {
    {64, 64, 128, 8, 3}, {64, 64, 128, 16, 2}, {32, 32, 64, 8, 3}, {64, 64, 256, 16, 1}};  // likewise

/// The row of these tables.
int row_of(const RungConfig& config) {
  return fa2_cols(config.head_dim) / fa2_cols(1) - 1;
}

/// A thread has 8 x 8 or 8 x 4 scores where there is enough work for tiles of 128 rows and shared memory has room for
/// them; else smaller tiles, for more blocks.
Fa2ForwardTile forward_tile(const RungConfig& config) {
  const auto& [tall, low] = kForwardTiles[row_of(config)];
  const bool fits = tall.smem_bytes(config.head_dim) <= config.max_smem_per_block;
  return config.many_rows && fits ? tall : low;
}

Fa2BackwardTile backward_tile(const RungConfig& config) {
  const Fa2BackwardTile& tile = kBackwardTiles[row_of(config)];
  const bool fits = tile.smem_bytes(config.head_dim) <= config.max_smem_per_block;
  return fits ? tile : Fa2BackwardTile{32, 32, 128, 16, 2};
}

std::vector<Step> fa2_forward(const RungConfig& config) {
  const Fa2ForwardTile tile = forward_tile(config);
  return {{.block_m = tile.block_m,
           .block_n = tile.block_n,
           .threads = tile.threads,
           .smem_bytes = tile.smem_bytes(config.head_dim),
           .constants = {{"kLanesX", tile.lanes_x}},
           .min_blocks = tile.min_blocks}};
}

std::vector<Step> fa2_backward(const RungConfig& config) {
  const Fa2BackwardTile tile = backward_tile(config);
  return {{.function = "fa2_backward_prepare", .block_m = kSavedRowsTile, .block_n = 1, .threads = 256},
          {.function = "fa2_backward",
           .grid = Grid::kKeyTiles,
           .block_m = tile.block_m,
           .block_n = tile.block_n,
           .threads = tile.threads,
           .smem_bytes = tile.smem_bytes(config.head_dim),
           .constants = {{"kThreadsX", tile.threads_x}},
           .min_blocks = tile.min_blocks}};
}

/// What is saved of each query row for the gradients, heads padded to whole tiles.
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
       .max_head_dim = 128,  // as far as the tables go
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
