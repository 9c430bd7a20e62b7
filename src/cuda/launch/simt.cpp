// simt: every problem of the interface on CUDA cores.
#include <algorithm>

#include "cuda/launch/estimate.hpp"
#include "cuda/launch/families.hpp"
#include "cuda/launch/kernel_args.hpp"
#include "kernels/common/saved_row.cuh"
#include "kernels/common/work.cuh"
#include "kernels/simt/simt_shape.cuh"

namespace attend::cuda {
namespace {

using core::Problem;

struct SimtVariant : Facts {
  std::int32_t has_dbias = 0;
  ElementType dbias = ElementType::kF32;
  std::int32_t dbias_over_rows = 0;  ///< it is a sum over the rows
  SimtForwardTile forward = {};
  SimtBackwardTile gradients[3] = {};  ///< of SimtGradient

  [[nodiscard]] const SimtBackwardTile& tile(SimtGradient g) const { return gradients[static_cast<std::size_t>(g)]; }
};

/// Where the tiles stand among the variant's ints, for its tunables.
constexpr std::size_t kGradientInts = sizeof(SimtBackwardTile) / sizeof(std::int32_t);
constexpr std::size_t kGradientsAt = sizeof(SimtVariant) / sizeof(std::int32_t) - 3 * kGradientInts;
constexpr std::size_t kForwardAt = kGradientsAt - sizeof(SimtForwardTile) / sizeof(std::int32_t);
constexpr std::size_t kKeysAt = kGradientsAt + 3;  // behind gradient, head_dim and head_dim_v
constexpr std::size_t kQueriesAt = kKeysAt + kGradientInts;

constexpr std::int32_t kTaken = option::kAll | option::kHugeSoftcap | option::kRing;

/// Whatever has no option that wants registers.
bool is_plain(const Facts& facts) {
  return facts.aligned != 0 && (facts.options & ~option::kAddsToOutputs) == 0;
}

constexpr int kMostColumns = 256;  // of o in one block, on GPUs with 99 KB of shared memory and more

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
                          .columns = ColumnParts::of(facts.head_dim_v, kMostColumns, 32)};
  if (tile.panels.width > 64 || tile.columns.width > 64) {
    tile.block_n = 32;
    tile.min_blocks = 2;
  }
  if (few_rows && facts.head_dim_v <= 128) {
    tile.block_m = 32;
    tile.block_n = 64;
    tile.lanes_x = 16;
    tile.min_blocks = 2;
    tile.columns = ColumnParts::of(facts.head_dim_v, kMostColumns, 64);
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

/// The first that fits into a block's shared memory of these: tiles of 64 x 64 up to 64 columns, of 64 owned and 32
/// streamed rows above or where options want registers. Two blocks fit on a multiprocessor of 227 KB, but for dk and dv
/// from 121 columns on, which take 116 KB. Where columns come in panels and options keep something for every score, the
/// sums go to twice the threads, or else each block has half the columns.
SimtBackwardTile backward_tile(const Facts& facts, SimtGradient gradient, int max_smem_per_block) {
  const int widest = std::max(facts.head_dim, facts.head_dim_v);
  bool resident = widest <= kWide;
  const auto make = [&](int block_m, int block_n, int threads, int threads_x, int most_columns = kWide) {
    const int parts = ceil_div(widest, most_columns);
    const auto cols = [&](int head_dim) { return round_up(ceil_div(head_dim, parts), 4 * threads_x); };
    return SimtBackwardTile{.gradient = gradient,
                            .head_dim = facts.head_dim,
                            .head_dim_v = facts.head_dim_v,
                            .block_m = block_m,
                            .block_n = block_n,
                            .threads = threads,
                            .threads_x = threads_x,
                            .min_blocks = threads > 128 ? 1 : 2,
                            .resident = resident,
                            .panel = 64,
                            .parts = gradient == SimtGradient::kBias ? 1 : parts,
                            .cols_0 = cols(facts.head_dim),
                            .cols_1 = cols(facts.head_dim_v)};
  };
  const bool owns_keys = gradient != SimtGradient::kQueries;
  const bool crowded = facts.has(option::kSoftcap | option::kDropout);
  SimtBackwardTile tile = owns_keys ? make(32, 64, 128, 16) : make(64, 32, 128, 16);
  if (widest <= 64 && is_plain(facts)) tile = make(64, 64, 128, 16);
  if (!resident && crowded) {
    tile = make(64, 64, 256, 16);
    if (tile.smem_bytes() > max_smem_per_block) {
      tile = owns_keys ? make(32, 64, 128, 16, kNarrow) : make(64, 32, 128, 16, kNarrow);
    }
  }
  if (tile.smem_bytes() > max_smem_per_block) tile = make(32, 32, 64, 8);
  if (tile.smem_bytes() > max_smem_per_block) {
    resident = false;
    tile = make(32, 32, 64, 8);
  }
  return tile;
}

using enum SimtGradient;

SimtVariant variant_of(const Facts& facts, bool few_rows, int max_smem_per_block) {
  SimtVariant variant = {facts};
  if (facts.is_backward == 0) {
    variant.forward = forward_tile(facts, few_rows, max_smem_per_block);
    return variant;
  }
  for (const SimtGradient gradient : {kKeysValues, kQueries, kBias}) {
    variant.gradients[static_cast<std::size_t>(gradient)] = backward_tile(facts, gradient, max_smem_per_block);
  }
  return variant;
}

/// A kernel's spec. Tile is anything with block_m, block_n, threads and min_blocks; constants `more` come last.
template <class Tile>
KernelSpec spec_of(const SimtVariant& variant, const Arch& arch, const char* function, const Tile& tile, int smem_bytes,
                   int column_parts, std::initializer_list<Constant> more) {
  const bool backward = variant.is_backward != 0;
  KernelSpec spec = {.name = function,
                     .source = backward ? "simt/simt_backward.cuh" : "simt/simt_forward.cuh",
                     .function = function,
                     .args = backward ? BackwardOptionArgs::kTypeName : ForwardOptionArgs::kTypeName,
                     .config = constants_of(variant, kTaken,
                                            {{"kThreads", tile.threads},
                                             {"kBlockM", tile.block_m},
                                             {"kBlockN", tile.block_n},
                                             {"kSmemBytes", smem_bytes},
                                             {"kColumnParts", column_parts}}),
                     .arch = arch.target,
                     .dynamic_smem_bytes = static_cast<unsigned>(smem_bytes),
                     .min_blocks = tile.min_blocks};
  if (backward) spec.config.push_back({"kHasLseRounding", variant.has_lse_rounding()});
  spec.config.insert(spec.config.end(), more);
  return spec;
}

KernelSpec gradient_spec(const SimtVariant& variant, const Arch& arch, const SimtBackwardTile& tile,
                         const char* function) {
  return spec_of(variant, arch, function, tile, tile.smem_bytes(), tile.parts,
                 {{"kPanels", tile.resident != 0 ? 1 : 2},
                  {"kPanel", tile.panel},
                  {"kCols0", tile.cols_0},
                  {"kCols1", tile.cols_1},
                  {"kThreadsX", tile.threads_x}});
}

/// The kernels that go through rows, or keys, one by one.
struct PlainTile {
  int block_m = 64, block_n = 64, threads = 256, min_blocks = 1;
};

class SimtFamily final : public Family {
 public:
  SimtFamily() : Family("simt", "every option, dtype and head_dim, on CUDA cores") {
    takes = kTaken;
    dtypes.bits = core::dtype_bit(DType::kF32) | core::dtype_bit(DType::kF16) | core::dtype_bit(DType::kBF16);
  }

  [[nodiscard]] bool supports(const Arch& /*arch*/) const override { return true; }

  [[nodiscard]] Choice choose(const Problem& p, const DeviceInfo& device) const override {
    constexpr std::int64_t kLowTile = 64, kFewRows = 32;
    const bool few_rows =
        p.max_seqlen_q <= kFewRows ||
        num_tiles(p.max_seqlen_q, kLowTile) * p.num_sequences * p.num_heads_q < device.num_multiprocessors;
    SimtVariant variant = variant_of(facts_of(p, false), few_rows, device.max_smem_per_block);
    if (p.dbias) {
      variant.has_dbias = 1;
      variant.dbias = element_of(p.dbias->dtype);
      variant.dbias_over_rows = p.dbias->shape[2] != p.max_seqlen_q;
    }
    Choice choice = {.variant = variant, .why = "CUDA cores, which take every option"};
    if (few_rows && !p.is_backward) {
      choice.why = "CUDA cores; few rows: low tiles, so that every multiprocessor gets some";
    }
    lay_out(p, device, choice);
    return choice;
  }

  void lay_out(const Problem& p, const DeviceInfo& device, Choice& choice) const override {
    const auto variant = choice.variant.as<SimtVariant>();
    const std::int64_t query_heads = p.num_sequences * p.num_heads_q;
    const auto row_tiles = [&](int block_m) { return num_tiles(p.max_seqlen_q, block_m); };
    const auto key_tiles = [&](int block_n) { return num_tiles(p.max_seqlen_k, block_n); };
    choice.num_steps = 0;
    if (!p.is_backward) {
      choice.add_step({.blocks = row_tiles(variant.forward.block_m) * query_heads * variant.forward.columns.count});
    } else {
      const SimtBackwardTile &keys = variant.tile(kKeysValues), &queries = variant.tile(kQueries);
      choice.add_step({.blocks = row_tiles(PlainTile().block_m) * query_heads});
      choice.add_step({.blocks = key_tiles(keys.block_n) * p.num_sequences * p.num_heads_k * keys.parts});
      choice.add_step({.blocks = row_tiles(queries.block_m) * query_heads * queries.parts});
    }
    if (variant.has_dbias != 0) {
      const std::int64_t matrices = p.dbias->shape[0] * p.dbias->shape[1];
      const SimtBackwardTile& tile = variant.tile(kBias);
      if (variant.dbias_over_rows == 0) {
        choice.add_step({.blocks = matrices * row_tiles(tile.block_m) * key_tiles(tile.block_n)});
      } else {
        choice.add_step({.blocks = query_heads * key_tiles(tile.block_n)});
        choice.add_step({.blocks = matrices * key_tiles(PlainTile().threads)});
      }
    }
    constexpr double kForwardTflops = 30, kBackwardTflops = 20;
    const std::size_t main = p.is_backward ? 1 : 0;
    choice.seconds = estimated_seconds(p, device,
                                       {.tflops = p.is_backward ? kBackwardTflops : kForwardTflops,
                                        .block_m = variant.forward.block_m,
                                        .blocks = choice.steps[main].blocks,
                                        .blocks_per_multiprocessor = 2,
                                        .num_steps = choice.num_steps});
  }

  [[nodiscard]] std::vector<KernelSpec> kernels(const Variant& bytes, const Arch& arch) const override {
    const auto variant = bytes.as<SimtVariant>();
    if (variant.is_backward == 0) {
      const SimtForwardTile& tile = variant.forward;
      return {spec_of(variant, arch, "simt_forward", tile, tile.smem_bytes(), tile.columns.count,
                      {{"kPanels", tile.panels.count},
                       {"kPanel", tile.panels.width},
                       {"kCols", tile.columns.width},
                       {"kLanesX", tile.lanes_x}})};
    }
    std::vector<KernelSpec> specs = {spec_of(variant, arch, "simt_backward_prepare", PlainTile(), 0, 1,
                                             {{"kSoleKey", variant.sole_key != 0}, {"kFusesScores", false}}),
                                     gradient_spec(variant, arch, variant.tile(kKeysValues), "simt_backward_keys"),
                                     gradient_spec(variant, arch, variant.tile(kQueries), "simt_backward_queries")};
    if (variant.has_dbias == 0) return specs;
    const bool over_rows = variant.dbias_over_rows != 0;
    specs.push_back(
        gradient_spec(variant, arch, variant.tile(kBias), over_rows ? "simt_dbias_over_rows" : "simt_dbias"));
    if (over_rows) specs.push_back(spec_of(variant, arch, "dbias_reduce", PlainTile(), 0, 1, {}));
    specs.back().config.push_back({"kDbiasElement", element_constant(variant.dbias)});
    return specs;
  }

  [[nodiscard]] Workspace workspace(const Problem& p, const Choice& choice) const override {
    Workspace workspace;
    if (!p.is_backward) return workspace;
    const std::int64_t heads = p.q.shape[0] * p.num_heads_q;
    const bool over_rows = choice.variant.as<SimtVariant>().dbias_over_rows != 0;
    workspace.add({"saved rows", heads * p.q.shape[2] * std::int64_t{sizeof(SavedRow)}});
    workspace.add({"sums of dbias", over_rows ? heads * p.max_seqlen_k * std::int64_t{sizeof(float)} : 0});
    return workspace;
  }

  void launch(const Launch& launch) const override {
    const Problem& p = launch.problem;
    if (!p.is_backward) return launch.run_all(ForwardOptionArgs{forward_args(p, nullptr), option_args_of(p)});
    BackwardOptionArgs args = backward_option_args(backward_args(p, launch.region(0)), p);
    args.dbias_sums = launch.region<float>(1);
    launch.run_all(args);
  }

  [[nodiscard]] std::vector<Variant> examples(const Arch& arch) const override;

  [[nodiscard]] std::span<const Tunable> tunables(const Variant& variant) const override {
    static const std::vector<Tunable> kForward =
        tunables_of({{kForwardAt, {"block_m", "block_n", "threads", "lanes_x", "min_blocks"}}});
    static const std::vector<Tunable> kBackward = tunables_of(
        {{kKeysAt, {"keys_block_m", "keys_block_n", "keys_threads", "keys_threads_x", "keys_min_blocks"}},
         {kQueriesAt,
          {"queries_block_m", "queries_block_n", "queries_threads", "queries_threads_x", "queries_min_blocks"}}});
    return variant.as<SimtVariant>().is_backward != 0 ? kBackward : kForward;
  }

 protected:
  /// Blocks that share rows would read an lse that another of them has written.
  [[nodiscard]] std::optional<core::Lack> lack_of_its_own(const Problem& p, const DeviceInfo& device) const override {
    if (!p.adds_to_outputs() || p.is_backward) return std::nullopt;
    if (forward_tile(facts_of(p, false), false, device.max_smem_per_block).columns.count == 1) return std::nullopt;
    return core::Lack{"v", "head_dim", p.head_dim_v,
                      p.head_dim_v > kMostColumns ? "1 to 256 in a ring" : "1 to 128 in a ring on this GPU"};
  }
};

/// A covering set, not the product: every dtype, the head_dims at which tiles change, each option alone, and all that
/// go together; tensors that are not aligned, few rows, both kinds of dbias.
std::vector<Variant> SimtFamily::examples(const Arch& arch) const {
  using enum ElementType;
  using enum MaskKind;
  constexpr auto kRest = option::kSoftcap | option::kAlibi | option::kDropout;
  struct Case {
    Facts facts;
    std::optional<ElementType> dbias = {};
    bool over_rows = false;
  };
  static constexpr Case kCases[] = {{{kF16, 64, 64, kCausal}},
                                    {{kF32, 16, 16, kFull}},
                                    {{kF32, 128, 128, kCausal}},
                                    {{kBF16, 24, 24, kFull}},
                                    {{kBF16, 40, 40, kFull, option::kBias, kF16}, kF32},
                                    {{kF32, 124, 124, kWindow, option::kBias, kF16}, kF16},
                                    {{kF32, 40, 40, kFull, option::kSoftcap}},
                                    {{kF32, 64, 64, kFull, option::kSoftcap | option::kHugeSoftcap}},
                                    {{kBF16, 96, 96, kFull, option::kAlibi}},
                                    {{kF16, 256, 256, kFull, option::kDropout}},
                                    {{kF32, 64, 64, kCausal, option::kDropout | option::kPhiloxState}},
                                    {{kBF16, 512, 512, kFull, option::kVarlen}},
                                    {{kF16, 17, 300, kFull, option::kBoolMask}},
                                    {{kBF16, 64, 64, kWindow, option::kBias, kF32}, kBF16, true},
                                    {{kF32, 64, 64, kWindow, kRest | option::kVarlen}},
                                    {{kBF16, 128, 128, kWindow, kRest | option::kBoolMask | option::kBias, kF16}, kF16},
                                    {{kF32, 64, 64, kCausal, option::kAddsToOutputs}},
                                    {{kF16, 17, 20, kWindow, kRest | option::kRing}},
                                    {{kBF16, 256, 256, kFull, option::kAddsToOutputs | option::kBias, kF32}}};
  std::vector<Variant> variants;
  for (const Case& c : kCases) {
    Facts facts = c.facts;
    facts.aligned = facts.head_dim % 16 == 0;
    for (const bool few_rows : {false, true}) {
      if (few_rows && facts.options != 0) continue;
      const SimtVariant forward = variant_of(facts, few_rows, arch.max_smem_per_block);
      if (!facts.has(option::kAddsToOutputs) || forward.forward.columns.count == 1) variants.emplace_back(forward);
    }
    facts.is_backward = 1;
    SimtVariant backward = variant_of(facts, false, arch.max_smem_per_block);
    backward.has_dbias = c.dbias.has_value();
    backward.dbias = c.dbias.value_or(kF32);
    backward.dbias_over_rows = c.over_rows;
    variants.emplace_back(backward);
    if (facts.options != (option::kDropout | option::kPhiloxState)) continue;
    backward.element = kF16;
    backward.sole_key = 1;
    variants.emplace_back(backward);
  }
  return variants;
}

}  // namespace

std::unique_ptr<const Family> simt_family() {
  return std::make_unique<const SimtFamily>();
}

}  // namespace attend::cuda
