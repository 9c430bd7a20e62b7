// Rungs 01 to 07: float32 on CUDA cores, as a textbook would write it.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "cuda/launch/rung.hpp"
#include "kernels/common/ladder_shapes.cuh"

namespace attend::cuda {
namespace {

constexpr int kWarpThreads = 32;
constexpr int kMaxTiledHeadDim = 128;

/// The bytes of a float for each of `count` * rows * ...; the largest number there is, where that is more.
template <class... Factors>
std::size_t workspace_bytes(Factors... factors) {
  std::size_t bytes = sizeof(float);
  for (const std::int64_t factor : {factors...}) {
    if (__builtin_mul_overflow(bytes, static_cast<std::size_t>(factor), &bytes)) {
      return std::numeric_limits<std::size_t>::max();
    }
  }
  return bytes;
}

// Rung 01.

Step product_step(const char* function, Grid grid, StepArgs args) {
  return {.function = function,
          .grid = grid,
          .block_m = ProductTileShape::kSize,
          .block_n = ProductTileShape::kSize,
          .threads = ProductTileShape::kThreads,
          .smem_bytes = ProductTileShape::kSmemBytes,
          .args = args};
}

/// A warp for each row.
Step row_step(const char* function, StepArgs args) {
  return {.function = function,
          .block_m = ProductTileShape::kThreads / kWarpThreads,
          .block_n = 1,
          .threads = ProductTileShape::kThreads,
          .args = args};
}

std::vector<Step> standard_forward(const RungConfig& /*config*/) {
  return {product_step("standard_scores", Grid::kScoreTiles, StepArgs::kForward),
          row_step("standard_softmax", StepArgs::kForward),
          product_step("standard_output", Grid::kRowTiles, StepArgs::kForward)};
}

std::vector<Step> standard_backward(const RungConfig& /*config*/) {
  return {row_step("standard_delta", StepArgs::kBackward),
          product_step("standard_probabilities", Grid::kScoreTiles, StepArgs::kBackward),
          product_step("standard_dscores", Grid::kScoreTiles, StepArgs::kBackward),
          product_step("standard_dq", Grid::kRowTiles, StepArgs::kBackward),
          product_step("standard_dk", Grid::kKeyTiles, StepArgs::kBackward),
          product_step("standard_dv", Grid::kKeyTiles, StepArgs::kBackward)};
}

/// S, then P.
std::size_t standard_forward_workspace(const core::Problem& p) {
  return workspace_bytes(p.num_sequences, p.num_heads_q, p.max_seqlen_q, p.max_seqlen_k);
}

/// P and dS, and delta.
std::size_t standard_backward_workspace(const core::Problem& p) {
  return workspace_bytes(p.num_sequences, p.num_heads_q, p.max_seqlen_q, 2 * p.max_seqlen_k + 1);
}

// Rung 02.

std::vector<Step> naive_forward(const RungConfig& /*config*/) {
  constexpr int kThreads = 128;  // four warps give the scheduler something to choose from
  return {{.function = "naive_forward", .block_m = kThreads, .block_n = 1, .threads = kThreads}};
}

// Rungs 03 and 04: a warp for each row.

bool is_narrow(const RungConfig& config) {
  return std::max(config.head_dim, config.head_dim_v) <= 64;
}

/// Half as many keys where rows are twice as long: the tiles stay as large. Four keys of a lane, or two, share each
/// read of q; fewer where the device has less shared memory.
int warp_row_keys(const RungConfig& config, int warps) {
  int keys = is_narrow(config) ? 128 : 64;
  while (keys > kWarpThreads &&
         warp_row_bytes(warps, keys, config.head_dim, config.head_dim_v) > config.max_smem_per_block) {
    keys /= 2;
  }
  return keys;
}

Step warp_row_step(const char* function, Grid grid, const RungConfig& config, int warps) {
  const int keys = warp_row_keys(config, warps);
  return {.function = function,
          .grid = grid,
          .block_m = warps,
          .block_n = keys,
          .threads = warps * kWarpThreads,
          .smem_bytes = static_cast<unsigned>(warp_row_bytes(warps, keys, config.head_dim, config.head_dim_v))};
}

std::vector<Step> tiled_forward(const RungConfig& config) {
  Step step = warp_row_step("tiled_forward", Grid::kRowTiles, config, 16);
  step.min_blocks = 2;  // one computes while the other waits for keys
  return {step};
}

/// As many warps as a block may have: no other block keeps the multiprocessor busy.
std::vector<Step> fa1_forward(const RungConfig& config) {
  return {warp_row_step("fa1_forward", Grid::kQueryHeads, config, 32)};
}

/// m and l of each row.
std::size_t row_statistics_workspace(const core::Problem& p) {
  return workspace_bytes(p.num_sequences, p.num_heads_q, p.max_seqlen_q, std::int64_t{2});
}

// Rungs 05 and 06: score tiles in shared memory. Rung 07: in registers.

/// `rows`, or fewer on devices with less shared memory, and then fewer keys. The rows of a thread are always the same.
Step tile_step(const char* function, const RungConfig& config, int rows, int rows_of_thread, int statistics) {
  constexpr int kFewest = 32;
  int keys = 64;
  const auto bytes = [&] { return score_tile_bytes(rows, keys, config.head_dim, config.head_dim_v, statistics); };
  while (rows > kFewest && bytes() > config.max_smem_per_block) rows /= 2;
  if (bytes() > config.max_smem_per_block) keys = kFewest;
  return {.function = function,
          .block_m = rows,
          .block_n = keys,
          .threads = rows / rows_of_thread * kGridColumns,
          .smem_bytes = static_cast<unsigned>(bytes())};
}

std::vector<Step> flash_2d_forward(const RungConfig& config) {
  Step step = tile_step("flash_2d_forward", config, 128, 4, 3);
  step.grid = Grid::kQueryHeads;
  return {step};
}

std::vector<Step> fa2_naive_forward(const RungConfig& config) {
  // Three blocks of a multiprocessor hide each other's barriers; wide rows fill it with one block.
  Step step = tile_step("fa2_naive_forward", config, is_narrow(config) ? 64 : 128, 4, 3);
  step.min_blocks = is_narrow(config) ? 3 : 1;
  return {step};
}

std::vector<Step> scalar2d_row_tile_forward(const RungConfig& config) {
  Step step = tile_step("scalar2d_row_tile_forward", config, is_narrow(config) ? 128 : 64, 8, 0);
  step.min_blocks = 2;  // one computes while the other waits for keys
  return {step};
}

}  // namespace

std::vector<Rung> simt_rungs() {
  constexpr std::size_t kMaxWorkspace = std::size_t{32} << 30;
  return {
      {.number = 1,
       .name = "standard",
       .description = "rung 01: S and P in memory, a kernel for each step",
       .source = "ladder/01_standard.cuh",
       .dtypes = {DType::kF32},
       .any_head_dim_v = true,
       .max_workspace = kMaxWorkspace,
       .forward = standard_forward,
       .backward = standard_backward,
       .forward_workspace = standard_forward_workspace,
       .backward_workspace = standard_backward_workspace},
      {.number = 2,
       .name = "naive",
       .description = "rung 02: one thread for each query row, online softmax",
       .source = "ladder/02_naive.cuh",
       .dtypes = {DType::kF32},
       .any_head_dim_v = true,
       .forward = naive_forward},
      {.number = 3,
       .name = "tiled",
       .description = "rung 03: a warp for each query row, tiles of keys in shared memory",
       .source = "ladder/03_tiled.cuh",
       .dtypes = {DType::kF32},
       .max_head_dim = kMaxTiledHeadDim,
       .any_head_dim_v = true,
       .forward = tiled_forward},
      {.number = 4,
       .name = "fa1",
       .description = "rung 04: tiles of keys outside, rows inside, o in memory (FlashAttention)",
       .source = "ladder/04_fa1.cuh",
       .dtypes = {DType::kF32},
       .max_head_dim = kMaxTiledHeadDim,
       .any_head_dim_v = true,
       .forward = fa1_forward,
       .forward_workspace = row_statistics_workspace},
      {.number = 5,
       .name = "flash_2d",
       .description = "rung 05: the same with a grid of threads over the scores",
       .source = "ladder/05_flash_2d.cuh",
       .dtypes = {DType::kF32},
       .max_head_dim = kMaxTiledHeadDim,
       .any_head_dim_v = true,
       .forward = flash_2d_forward,
       .forward_workspace = row_statistics_workspace},
      {.number = 6,
       .name = "fa2_naive",
       .description = "rung 06: rows outside, tiles of keys inside, o in registers (FlashAttention-2)",
       .source = "ladder/06_fa2_naive.cuh",
       .dtypes = {DType::kF32},
       .max_head_dim = kMaxTiledHeadDim,
       .any_head_dim_v = true,
       .forward = fa2_naive_forward},
      {.number = 7,
       .name = "scalar2d_row_tile",
       .description = "rung 07: scores and statistics of a row tile in registers, 8 x 4 a thread",
       .source = "ladder/07_scalar2d_row_tile.cuh",
       .dtypes = {DType::kF32},
       .max_head_dim = kMaxTiledHeadDim,
       .any_head_dim_v = true,
       .forward = scalar2d_row_tile_forward},
  };
}

}  // namespace attend::cuda
