// Rung 08: float32 on CUDA cores, as fast as they go.
#include "cuda/launch/ladder.hpp"
#include "kernels/common/work.cuh"

namespace attend::cuda {
namespace {

constexpr int kWarp = 32;

/// Shared memory holds tiles of this many columns; those beyond head_dim are zeros.
int padded(int head_dim) {
  constexpr int kPanel = 32;  // floats: 128 bytes, what the swizzle works on
  return (head_dim + kPanel - 1) / kPanel * kPanel;
}

std::vector<Step> fa2_forward(const RungConfig& config) {
  struct Shape {
    int block_m, block_n, threads, lanes_x, min_blocks;
  };
  const int cols = padded(config.head_dim);
  const Shape shape = cols == 32   ? Shape{64, 64, 128, 8, 3}
                      : cols == 64 ? Shape{64, 64, 128, 16, 3}
                      : cols == 96 ? Shape{64, 32, 128, 8, 3}
                                   : Shape{64, 32, 128, 8, 3};
  const int floats = (shape.block_m + 2 * shape.block_n) * cols + shape.block_m * shape.block_n;
  return {{.function = "fa2_forward",
           .block_m = shape.block_m,
           .block_n = shape.block_n,
           .threads = shape.threads,
           .smem_bytes = static_cast<unsigned>(floats * sizeof(float)),
           .constants = {{"kLanesX", std::int64_t{shape.lanes_x}}},
           .min_blocks = shape.min_blocks}};
}

struct BackwardShape {
  int block_m, block_n, threads, threads_x, min_blocks;
};

BackwardShape backward_shape(int head_dim) {
  switch (padded(head_dim)) {
    case 32:
      return {64, 64, 128, 8, 3};
    case 64:
      return {64, 64, 128, 16, 2};
    case 96:
      return {32, 32, 2 * kWarp, 8, 4};
    default:
      return {32, 32, 128, 16, 3};
  }
}

std::vector<Step> fa2_backward(const RungConfig& config) {
  const BackwardShape shape = backward_shape(config.head_dim);
  const int floats = 2 * (shape.block_m + shape.block_n) * padded(config.head_dim) + 2 * shape.block_m * shape.block_n +
                     2 * shape.block_m;
  return {{.function = "fa2_backward_prepare",
           .block_m = shape.block_m,
           .block_n = shape.block_n,
           .threads = 256,
           .args = StepArgs::kBackward},
          {.function = "fa2_backward",
           .grid = Grid::kKeyTiles,
           .block_m = shape.block_m,
           .block_n = shape.block_n,
           .threads = shape.threads,
           .smem_bytes = static_cast<unsigned>(floats * sizeof(float)),
           .constants = {{"kThreadsX", std::int64_t{shape.threads_x}}},
           .args = StepArgs::kBackward,
           .min_blocks = shape.min_blocks}};
}

/// Two floats for each query row, heads padded to whole tiles.
std::size_t backward_workspace(const core::Problem& p) {
  const int block_m = backward_shape(static_cast<int>(p.head_dim)).block_m;
  const std::int64_t rows = num_tiles(p.max_seqlen_q, block_m) * block_m;
  return static_cast<std::size_t>(p.num_sequences * p.num_heads_q * rows) * 2 * sizeof(float);
}

bool has_async_copies(const Arch& arch) {
  return arch.cp_async;
}

}  // namespace

std::vector<Rung> fa2_rungs() {
  return {
      {.number = 8,
       .name = "fa2",
       .description = "rung 08: float32 on CUDA cores, register tiles and asynchronous copies",
       .source = "ladder/08_fa2.cuh",
       .backward_source = "ladder/08_fa2_backward.cuh",
       .dtypes = {DType::kF32},
       .max_head_dim = 128,
       .folds_scale = true,
       .deterministic_backward = false,
       .supports = has_async_copies,
       .forward = fa2_forward,
       .backward = fa2_backward,
       .backward_workspace = backward_workspace},
  };
}

}  // namespace attend::cuda
