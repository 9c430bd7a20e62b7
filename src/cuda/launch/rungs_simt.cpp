// Rungs 01 to 07, which compute float32 on CUDA cores with textbook algorithms.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "cuda/launch/rung.hpp"
#include "kernels/ladder/pieces/ladder_shapes.cuh"

namespace attend::cuda {
namespace {

constexpr int kWarpThreads = 32;

/// Returns the size in bytes of `count` floats for each query row of each head. On overflow, returns the largest
/// size_t.
std::size_t floats_of_rows(const core::Problem& p, std::int64_t count) {
  std::size_t bytes = sizeof(float);
  for (const std::int64_t factor : {p.num_sequences, p.num_heads_q, p.max_seqlen_q, count}) {
    if (__builtin_mul_overflow(bytes, static_cast<std::size_t>(factor), &bytes)) {
      return std::numeric_limits<std::size_t>::max();
    }
  }
  return bytes;
}

// The launches of rung 01.

Step product_step(const char* function, Grid grid) {
  return {.function = function,
          .grid = grid,
          .tile = {.block_m = ProductTileShape::kSize,
                   .block_n = ProductTileShape::kSize,
                   .threads = ProductTileShape::kThreads,
                   .smem_bytes = ProductTileShape::kSmemBytes}};
}

/// Returns a launch in which each warp processes one query row.
Step row_step(const char* function) {
  constexpr int kThreads = ProductTileShape::kThreads;
  return {.function = function, .tile = {.block_m = kThreads / kWarpThreads, .block_n = 1, .threads = kThreads}};
}

std::vector<Step> standard_forward(const RungConfig& /*config*/) {
  return {product_step("standard_scores", Grid::kScoreTiles), row_step("standard_softmax"),
          product_step("standard_output", Grid::kRowTiles)};
}

std::vector<Step> standard_backward(const RungConfig& /*config*/) {
  return {row_step("standard_delta"),
          product_step("standard_probabilities", Grid::kScoreTiles),
          product_step("standard_dscores", Grid::kScoreTiles),
          product_step("standard_dq", Grid::kRowTiles),
          product_step("standard_dk", Grid::kKeyTiles),
          product_step("standard_dv", Grid::kKeyTiles)};
}

/// Returns the size of the workspace. In the forward pass, the workspace contains S, which P overwrites. In the
/// backward pass, it contains P, dS and delta.
std::size_t standard_workspace(const core::Problem& p) {
  return floats_of_rows(p, p.is_backward ? 2 * p.max_seqlen_k + 1 : p.max_seqlen_k);
}

// The launch of rung 02.

std::vector<Step> naive_forward(const RungConfig& /*config*/) {
  // Four warps per block, so that the warp scheduler can switch between warps.
  return {{.tile = {.block_m = 128, .block_n = 1, .threads = 128}}};
}

// The launches of rungs 03 and 04, in which each warp processes one query row.

bool is_narrow(const RungConfig& config) {
  return std::max(config.head_dim, config.head_dim_v) <= 64;
}

/// Returns a launch in which each warp processes one query row. If head_dim is above 64, a tile has half the keys, so
/// that its size stays the same. A lane reads each element of q once for all its keys: four keys, or two keys if
/// head_dim is above 64. On devices with less shared memory, a tile has fewer keys.
Step warp_row_step(const RungConfig& config, int warps) {
  int keys = is_narrow(config) ? 128 : 64;
  const auto bytes = [&] { return warp_row_bytes(warps, keys, config.head_dim, config.head_dim_v); };
  while (keys > kWarpThreads && bytes() > config.max_smem_per_block) keys /= 2;
  return {.tile = {.block_m = warps, .block_n = keys, .threads = warps * kWarpThreads, .smem_bytes = bytes()}};
}

std::vector<Step> tiled_forward(const RungConfig& config) {
  Step step = warp_row_step(config, 16);
  // Two blocks per multiprocessor, so that one block computes while the other waits for keys.
  step.tile.min_blocks = 2;
  return {step};
}

/// A block has the maximum number of warps, because it is the only block on its multiprocessor.
std::vector<Step> fa1_forward(const RungConfig& config) {
  Step step = warp_row_step(config, 32);
  step.grid = Grid::kQueryHeads;
  return {step};
}

/// The workspace contains the statistics m and l of each query row.
std::size_t row_statistics_workspace(const core::Problem& p) {
  return floats_of_rows(p, 2);
}

// Rungs 05 and 06 hold score tiles in shared memory. Rung 07 holds them in registers.

/// Returns a launch with `rows` query rows per block. On devices with less shared memory, a block has fewer rows and,
/// if necessary, fewer keys. Each thread always processes `rows_of_thread` rows.
Step tile_step(const RungConfig& config, int rows, int rows_of_thread, int statistics) {
  constexpr int kFewest = 32;
  int keys = 64;
  const auto bytes = [&] { return score_tile_bytes(rows, keys, config.head_dim, config.head_dim_v, statistics); };
  while (rows > kFewest && bytes() > config.max_smem_per_block) rows /= 2;
  if (bytes() > config.max_smem_per_block) keys = kFewest;
  return {
      .tile = {
          .block_m = rows, .block_n = keys, .threads = rows / rows_of_thread * kGridColumns, .smem_bytes = bytes()}};
}

std::vector<Step> flash_2d_forward(const RungConfig& config) {
  Step step = tile_step(config, 128, 4, 3);
  step.grid = Grid::kQueryHeads;
  return {step};
}

std::vector<Step> fa2_naive_forward(const RungConfig& config) {
  // If head_dim is at most 64, a multiprocessor has three blocks, so that other blocks compute while one block waits at
  // a barrier. Otherwise one block fills the multiprocessor.
  Step step = tile_step(config, is_narrow(config) ? 64 : 128, 4, 3);
  step.tile.min_blocks = is_narrow(config) ? 3 : 1;
  return {step};
}

std::vector<Step> scalar2d_row_tile_forward(const RungConfig& config) {
  Step step = tile_step(config, is_narrow(config) ? 128 : 64, 8, 0);
  // Two blocks per multiprocessor, so that one block computes while the other waits for keys.
  step.tile.min_blocks = 2;
  return {step};
}

Rung float_rung(int number, const char* name, const char* description, StepsOf forward) {
  return {.number = number, .name = name, .description = description, .any_head_dim_v = true, .forward = forward};
}

}  // namespace

std::vector<Rung> simt_rungs() {
  std::vector<Rung> rungs = {
      float_rung(1, "standard", "rung 01: S and P in memory, one kernel per step", standard_forward),
      float_rung(2, "naive", "rung 02: one thread per query row, online softmax", naive_forward),
      float_rung(3, "tiled", "rung 03: one warp per query row, key tiles in shared memory", tiled_forward),
      float_rung(4, "fa1", "rung 04: outer loop over key tiles, inner loop over rows, o in memory (FlashAttention)",
                 fa1_forward),
      float_rung(5, "flash_2d", "rung 05: rung 04 with a grid of threads over the scores", flash_2d_forward),
      float_rung(6, "fa2_naive",
                 "rung 06: outer loop over rows, inner loop over key tiles, o in registers (FlashAttention-2)",
                 fa2_naive_forward),
      float_rung(7, "scalar2d_row_tile",
                 "rung 07: scores and statistics of a row tile in registers, 8 x 4 scores per thread",
                 scalar2d_row_tile_forward)};
  Rung &standard = rungs[0], &naive = rungs[1], &fa1 = rungs[3], &flash_2d = rungs[4];
  standard.backward = standard_backward;
  standard.workspace = standard_workspace;
  standard.max_workspace = std::size_t{32} << 30;
  standard.max_head_dim = naive.max_head_dim = 512;
  fa1.workspace = flash_2d.workspace = row_statistics_workspace;
  return rungs;
}

}  // namespace attend::cuda
