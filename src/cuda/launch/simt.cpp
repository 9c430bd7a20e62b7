// simt: every problem of the interface on CUDA cores.
#include <algorithm>

#include "cuda/launch/production.hpp"
#include "kernels/common/work.cuh"

namespace attend::cuda {
namespace {

constexpr int kPadding = 4;  // floats behind each row of a transposed tile

int round_up(int value, int multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

int ceil_div(int value, int divisor) {
  return (value + divisor - 1) / divisor;
}

unsigned bytes_of(int floats) {
  return static_cast<unsigned>(floats) * static_cast<unsigned>(sizeof(float));
}

/// How a width of columns is divided: `count` parts of `width`, the last perhaps with columns that do not exist.
struct Parts {
  int count, width;

  static Parts of(int columns, int most, int multiple) {
    const int count = ceil_div(columns, most);
    return {count, round_up(ceil_div(columns, count), multiple)};
  }
};

struct ForwardShape {
  int block_m, block_n, threads, lanes_x, min_blocks;
  Parts panels;   // of q and k, that are in shared memory one at a time
  Parts columns;  // of o, a part to a block

  [[nodiscard]] unsigned smem_bytes() const {
    return bytes_of(block_n * (columns.width + block_m) + panels.width * (block_m + block_n + 2 * kPadding));
  }
};

/// At most 99 KB, what a block has on every architecture.
ForwardShape forward_shape(const RungConfig& config) {
  constexpr int kWidestPanel = 128, kNarrowPanel = 64, kMostColumns = 256;
  const bool one_panel = config.head_dim <= kWidestPanel;
  ForwardShape shape = {.block_m = 64,
                        .block_n = 64,
                        .threads = 128,
                        .lanes_x = 8,
                        .min_blocks = 3,
                        .panels = Parts::of(config.head_dim, one_panel ? kWidestPanel : kNarrowPanel, 8),
                        .columns = Parts::of(config.head_dim_v, kMostColumns, 32)};
  if (shape.panels.width > 64 || shape.columns.width > 64) {
    shape.block_n = 32;
    shape.min_blocks = 2;
  }
  return shape;
}

std::vector<Step> forward(const RungConfig& config) {
  const ForwardShape shape = forward_shape(config);
  return {{.function = "simt_forward",
           .block_m = shape.block_m,
           .block_n = shape.block_n,
           .threads = shape.threads,
           .smem_bytes = shape.smem_bytes(),
           .constants = {{"kPanels", std::int64_t{shape.panels.count}},
                         {"kPanel", std::int64_t{shape.panels.width}},
                         {"kCols", std::int64_t{shape.columns.width}},
                         {"kLanesX", std::int64_t{shape.lanes_x}}},
           .args = StepArgs::kForwardOptions,
           .min_blocks = shape.min_blocks,
           .column_parts = shape.columns.count}};
}

}  // namespace

const Rung& simt_kernels() {
  static const auto* kernels = new Rung{.name = "simt",
                                        .description = "every option, dtype and head_dim, on CUDA cores",
                                        .source = "simt/simt_forward.cuh",
                                        .backward_source = "simt/simt_backward.cuh",
                                        .dtypes = {DType::kF32, DType::kF16, DType::kBF16},
                                        .any_head_dim_v = true,
                                        .takes_options = true,
                                        .forward = forward};
  return *kernels;
}

}  // namespace attend::cuda
