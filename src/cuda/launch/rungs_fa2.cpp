// Rung 08: float32 on CUDA cores, as fast as they go.
#include "cuda/launch/ladder.hpp"
#include "kernels/common/work.cuh"

namespace attend::cuda {
namespace {

constexpr int kPadding = 4;  // floats behind each row of a transposed tile

int round_up(int value, int multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

/// Columns that the products sum over.
int depth_of(int head_dim) {
  return round_up(head_dim, 8);
}

/// Columns of the results. Those from head_dim on are zeros.
int cols_of(int head_dim) {
  return round_up(head_dim, 32);
}

unsigned bytes_of(int floats) {
  return static_cast<unsigned>(floats) * static_cast<unsigned>(sizeof(float));
}

struct ForwardShape {
  int block_m, block_n, threads, lanes_x, min_blocks;
};

/// A thread has 8 x 8 scores where there is enough work, else 8 x 4 or 4 x 4: smaller tiles for more blocks, or because
/// shared memory has no room for larger ones.
ForwardShape forward_shape(const RungConfig& config) {
  switch (cols_of(config.head_dim)) {
    case 32:
      return {64, 64, 128, 8, 4};
    case 64:
      return config.many_rows ? ForwardShape{128, 64, 128, 8, 2} : ForwardShape{64, 64, 128, 16, 3};
    default:
      return {64, 32, 128, 8, 2};
  }
}

std::vector<Step> fa2_forward(const RungConfig& config) {
  const ForwardShape shape = forward_shape(config);
  const int padded_m = shape.block_m + kPadding;
  const int padded_n = shape.block_n + kPadding;
  const int floats = depth_of(config.head_dim) * (padded_m + padded_n) + shape.block_n * cols_of(config.head_dim) +
                     shape.block_n * padded_m;
  return {{.function = "fa2_forward",
           .block_m = shape.block_m,
           .block_n = shape.block_n,
           .threads = shape.threads,
           .smem_bytes = bytes_of(floats),
           .constants = {{"kLanesX", std::int64_t{shape.lanes_x}}},
           .min_blocks = shape.min_blocks}};
}

struct BackwardShape {
  int block_m, block_n, threads, threads_x, min_blocks;
};

BackwardShape backward_shape(int head_dim) {
  switch (cols_of(head_dim)) {
    case 32:
      return {64, 64, 128, 8, 3};
    case 64:
      return {64, 64, 128, 16, 2};
    case 96:
      return {32, 32, 64, 8, 3};
    default:
      return {32, 32, 128, 16, 2};
  }
}

std::vector<Step> fa2_backward(const RungConfig& config) {
  const BackwardShape shape = backward_shape(config.head_dim);
  const int floats = 2 * depth_of(config.head_dim) * (shape.block_n + kPadding) +
                     (shape.block_n + 2 * shape.block_m) * cols_of(config.head_dim) + shape.block_m * shape.block_n +
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
           .smem_bytes = bytes_of(floats),
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
