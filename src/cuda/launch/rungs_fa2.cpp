// Rung 08: float32 on CUDA cores, as fast as they go.
#include "cuda/launch/float_tiles.hpp"
#include "cuda/launch/rung.hpp"
#include "kernels/common/work.cuh"

namespace attend::cuda {
namespace {

/// Columns that the products sum over.
int depth_of(int head_dim) {
  return round_up(head_dim, 8);
}

/// Columns of the results. Those from head_dim on are zeros.
int cols_of(int head_dim) {
  return round_up(head_dim, 32);
}

struct ForwardShape {
  int block_m, block_n, threads, lanes_x, min_blocks;

  [[nodiscard]] unsigned smem_bytes(int head_dim) const {
    const int padded_m = block_m + kTransposedPadding;
    const int padded_n = block_n + kTransposedPadding;
    return bytes_of(depth_of(head_dim) * (padded_m + padded_n) + block_n * (cols_of(head_dim) + padded_m));
  }
};

/// A thread has 8 x 8 or 8 x 4 scores where there is enough work for tiles of 128 rows and shared memory has room for
/// them; else smaller tiles, for more blocks.
ForwardShape forward_shape(const RungConfig& config) {
  struct Choice {
    ForwardShape tall, low;
  };
  const auto choice = [&]() -> Choice {
    switch (cols_of(config.head_dim)) {
      case 32:
        return {{128, 64, 128, 8, 3}, {64, 64, 128, 8, 4}};
      case 64:
        return {{128, 64, 128, 8, 2}, {64, 64, 128, 16, 3}};
      case 96:
        return {{128, 32, 128, 8, 2}, {64, 32, 128, 8, 2}};
      default:
        return {{128, 64, 256, 16, 1}, {64, 32, 128, 8, 2}};
    }
  }();
  const bool fits = choice.tall.smem_bytes(config.head_dim) <= static_cast<unsigned>(config.max_smem_per_block);
  return config.many_rows && fits ? choice.tall : choice.low;
}

std::vector<Step> fa2_forward(const RungConfig& config) {
  const ForwardShape shape = forward_shape(config);
  return {{.function = "fa2_forward",
           .block_m = shape.block_m,
           .block_n = shape.block_n,
           .threads = shape.threads,
           .smem_bytes = shape.smem_bytes(config.head_dim),
           .constants = {{"kLanesX", std::int64_t{shape.lanes_x}}},
           .min_blocks = shape.min_blocks}};
}

constexpr int kStatisticsTile = 64;                  // rows; tiles of the backward pass divide it
constexpr int kStatisticsBytes = 2 * sizeof(float);  // lse and delta of a row

struct BackwardShape {
  int block_m, block_n, threads, threads_x, min_blocks;

  [[nodiscard]] unsigned smem_bytes(int head_dim) const {
    const int floats = 2 * depth_of(head_dim) * (block_n + kTransposedPadding) +
                       (block_n + 2 * block_m) * cols_of(head_dim) + block_m * block_n;
    return bytes_of(floats) + static_cast<unsigned>(block_m * kStatisticsBytes);
  }
};

BackwardShape backward_shape(const RungConfig& config) {
  switch (cols_of(config.head_dim)) {
    case 32:
      return {64, 64, 128, 8, 3};
    case 64:
      return {64, 64, 128, 16, 2};
    case 96:
      return {32, 32, 64, 8, 3};
    default:
      break;
  }
  constexpr BackwardShape kWide = {64, 64, 256, 16, 1};
  const bool fits = kWide.smem_bytes(config.head_dim) <= static_cast<unsigned>(config.max_smem_per_block);
  return fits ? kWide : BackwardShape{32, 32, 128, 16, 2};
}

std::vector<Step> fa2_backward(const RungConfig& config) {
  const BackwardShape shape = backward_shape(config);
  return {{.function = "fa2_backward_prepare",
           .block_m = kStatisticsTile,
           .block_n = 1,
           .threads = 256,
           .args = StepArgs::kBackward},
          {.function = "fa2_backward",
           .grid = Grid::kKeyTiles,
           .block_m = shape.block_m,
           .block_n = shape.block_n,
           .threads = shape.threads,
           .smem_bytes = shape.smem_bytes(config.head_dim),
           .constants = {{"kThreadsX", std::int64_t{shape.threads_x}}},
           .args = StepArgs::kBackward,
           .min_blocks = shape.min_blocks}};
}

/// Statistics of each query row, heads padded to whole tiles.
std::size_t backward_workspace(const core::Problem& p) {
  const std::int64_t rows = num_tiles(p.max_seqlen_q, kStatisticsTile) * kStatisticsTile;
  return static_cast<std::size_t>(p.num_sequences * p.num_heads_q * rows) * kStatisticsBytes;
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
       .tflops = 44,
       .instructions = kCpAsync,
       .forward = fa2_forward,
       .backward = fa2_backward,
       .backward_workspace = backward_workspace},
  };
}

}  // namespace attend::cuda
