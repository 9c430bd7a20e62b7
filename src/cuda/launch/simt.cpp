// simt: every problem of the interface on CUDA cores.
#include <algorithm>

#include "cuda/launch/float_tiles.hpp"
#include "cuda/launch/production.hpp"
#include "kernels/common/work.cuh"

namespace attend::cuda {
namespace {

int ceil_div(int value, int divisor) {
  return (value + divisor - 1) / divisor;
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
    return bytes_of(block_n * (columns.width + block_m) + panels.width * (block_m + block_n + 2 * kTransposedPadding));
  }
};

bool is_plain(const RungConfig& config) {
  const OptionSet& o = config.options;
  return config.aligned && !(o.softcap || o.alibi || o.bool_mask || o.dropout || o.varlen || o.bias);
}

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
  if (config.few_rows && config.head_dim_v <= 128) {  // more blocks, fewer rows that do not exist
    shape.block_m = 32;
    shape.block_n = 64;
    shape.lanes_x = 16;
    shape.min_blocks = 2;
    shape.columns = Parts::of(config.head_dim_v, kMostColumns, 64);
  }
  if (!is_plain(config)) shape.min_blocks = 2;  // options want registers
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

constexpr std::size_t kSavedRowBytes = 2 * sizeof(float);  // lse and delta

/// What one kernel of the backward pass computes: SimtGradient in kernels/simt/backward_tile.cuh.
enum class Gradient { kKeysValues, kQueries, kBias };

struct BackwardShape {
  int block_m, block_n, threads, threads_x, min_blocks;
  bool resident;              ///< owned tiles stay in shared memory
  int panel;                  ///< columns in shared memory at a time, where they do not
  int parts, cols_0, cols_1;  ///< of the gradients' columns: of q and k, of v

  /// As SimtBackwardShape in kernels/simt/backward_tile.cuh lays it out.
  [[nodiscard]] unsigned smem_bytes(const RungConfig& config, Gradient gradient) const {
    const bool owns_keys = gradient != Gradient::kQueries;
    const int owned = owns_keys ? block_n : block_m;
    const int streamed = owns_keys ? block_m : block_n;
    const int score_tiles = gradient == Gradient::kKeysValues ? 2 : gradient == Gradient::kQueries ? 1 : 0;
    const bool has_rows_0 = resident || score_tiles > 0;
    const bool has_rows_1 = resident || score_tiles == 2;
    const int row_cols = (has_rows_0 ? cols_0 : 0) + (has_rows_1 ? cols_1 : 0) + (resident ? 0 : panel);
    const int depth = resident ? round_up(config.head_dim, 8) + round_up(config.head_dim_v, 8) : panel;
    return bytes_of(score_tiles * streamed * owned + streamed * row_cols + depth * (owned + kTransposedPadding)) +
           static_cast<unsigned>(block_m) * static_cast<unsigned>(kSavedRowBytes);
  }
};

constexpr int kWide = 128, kNarrow = 64;  // columns of a block's gradients, at most

/// The first that fits into a block's shared memory of these: tiles of 64 x 64 up to 64 columns, of 64 owned and 32
/// streamed rows above or where options want registers. Two blocks fit on a multiprocessor of 227 KB, but for dk and dv
/// from 121 columns on, which take 116 KB. Where columns come in panels and options keep something for every score, the sums go to twice the threads, or else each
/// block has half the columns.
BackwardShape backward_shape(const RungConfig& config, Gradient gradient) {
  const int widest = std::max(config.head_dim, config.head_dim_v);
  const bool resident = widest <= kWide;
  const auto make = [&](int block_m, int block_n, int threads, int threads_x, int most_columns = kWide) {
    const int parts = ceil_div(widest, most_columns);
    const auto cols = [&](int head_dim) { return round_up(ceil_div(head_dim, parts), 4 * threads_x); };
    return BackwardShape{.block_m = block_m,
                         .block_n = block_n,
                         .threads = threads,
                         .threads_x = threads_x,
                         .min_blocks = threads > 128 ? 1 : 2,
                         .resident = resident,
                         .panel = 64,
                         .parts = gradient == Gradient::kBias ? 1 : parts,
                         .cols_0 = cols(config.head_dim),
                         .cols_1 = cols(config.head_dim_v)};
  };
  const bool owns_keys = gradient != Gradient::kQueries;
  const bool crowded = config.options.softcap || config.options.dropout;
  const auto fits = [&](const BackwardShape& shape) {
    return shape.smem_bytes(config, gradient) <= static_cast<unsigned>(config.max_smem_per_block);
  };
  BackwardShape shape = owns_keys ? make(32, 64, 128, 16) : make(64, 32, 128, 16);
  if (widest <= 64 && is_plain(config)) shape = make(64, 64, 128, 16);
  if (!resident && crowded) {
    shape = make(64, 64, 256, 16);
    if (!fits(shape)) shape = owns_keys ? make(32, 64, 128, 16, kNarrow) : make(64, 32, 128, 16, kNarrow);
  }
  return fits(shape) ? shape : make(32, 32, 64, 8);
}

Step backward_step(const RungConfig& config, Gradient gradient, const char* function, Grid grid) {
  const BackwardShape shape = backward_shape(config, gradient);
  return {.function = function,
          .grid = grid,
          .block_m = shape.block_m,
          .block_n = shape.block_n,
          .threads = shape.threads,
          .smem_bytes = shape.smem_bytes(config, gradient),
          .constants = {{"kPanels", std::int64_t{shape.resident ? 1 : 2}},
                        {"kPanel", std::int64_t{shape.panel}},
                        {"kCols0", std::int64_t{shape.cols_0}},
                        {"kCols1", std::int64_t{shape.cols_1}},
                        {"kThreadsX", std::int64_t{shape.threads_x}}},
          .args = StepArgs::kBackwardOptions,
          .min_blocks = shape.min_blocks,
          .column_parts = shape.parts};
}

std::int64_t dbias_blocks(const Step& step, const core::Problem& p) {
  return p.dbias->shape[0] * p.dbias->shape[1] * num_tiles(p.max_seqlen_q, step.block_m) *
         num_tiles(p.max_seqlen_k, step.block_n);
}

std::int64_t over_rows_blocks(const Step& step, const core::Problem& p) {
  return p.num_sequences * p.num_heads_q * num_tiles(p.max_seqlen_k, step.block_n);
}

std::int64_t reduce_blocks(const Step& step, const core::Problem& p) {
  return p.dbias->shape[0] * p.dbias->shape[1] * num_tiles(p.max_seqlen_k, step.threads);
}

std::vector<Step> dbias_steps(const RungConfig& config) {
  const Constant element = {"kDbiasElement", element_constant(*config.options.dbias)};
  if (!config.options.dbias_over_rows) {
    Step step = backward_step(config, Gradient::kBias, "simt_dbias", Grid::kScoreTiles);
    step.constants.push_back(element);
    step.blocks = dbias_blocks;
    return {step};
  }
  Step sums = backward_step(config, Gradient::kBias, "simt_dbias_over_rows", Grid::kKeyTiles);
  sums.blocks = over_rows_blocks;
  return {sums,
          {.function = "simt_dbias_reduce",
           .threads = 256,
           .constants = {element},
           .args = StepArgs::kBackwardOptions,
           .blocks = reduce_blocks}};
}

std::vector<Step> backward(const RungConfig& config) {
  std::vector<Step> steps = {
      {.function = "simt_backward_prepare", .block_m = 64, .threads = 256, .args = StepArgs::kBackwardOptions},
      backward_step(config, Gradient::kKeysValues, "simt_backward_keys", Grid::kKeyTiles),
      backward_step(config, Gradient::kQueries, "simt_backward_queries", Grid::kRowTiles)};
  if (config.options.dbias) {
    for (Step& step : dbias_steps(config)) steps.push_back(std::move(step));
  }
  return steps;
}

/// The saved rows and, behind them, sums of dbias for each key of each head.
std::size_t backward_workspace(const core::Problem& p) {
  const auto heads = static_cast<std::size_t>(p.q.shape[0] * p.num_heads_q);
  const bool over_rows = p.dbias && p.dbias->shape[2] != p.max_seqlen_q;
  return heads * (static_cast<std::size_t>(p.q.shape[2]) * kSavedRowBytes +
                  (over_rows ? static_cast<std::size_t>(p.max_seqlen_k) * sizeof(float) : 0));
}

}  // namespace

const Rung& simt_kernels() {
  static const auto* kernels = new Rung{.name = "simt",
                                        .description = "every option, dtype and head_dim, on CUDA cores",
                                        .source = "simt/simt_forward.cuh",
                                        .backward_source = "simt/simt_backward.cuh",
                                        .dtypes = {DType::kF32, DType::kF16, DType::kBF16},
                                        .any_head_dim_v = true,
                                        .in_auto = true,
                                        .takes_options = true,
                                        .forward = forward,
                                        .backward = backward,
                                        .backward_workspace = backward_workspace};
  return *kernels;
}

}  // namespace attend::cuda
