// simt: every problem of the interface on CUDA cores.
#include <algorithm>

#include "cuda/launch/estimate.hpp"
#include "cuda/launch/families.hpp"
#include "cuda/launch/float_tiles.hpp"
#include "cuda/launch/kernel_args.hpp"
#include "kernels/common/work.cuh"

namespace attend::cuda {
namespace {

using core::Problem;

/// The tile of one kernel and how its threads divide it: see kernels/simt/.
struct Tile {
  std::int32_t block_m = 64, block_n = 64;  ///< query rows, keys
  std::int32_t threads = 128, threads_x = 8, min_blocks = 2;
  std::int32_t panels = 1, panel = 64;  ///< columns that are in shared memory one part at a time
  std::int32_t cols_0 = 0, cols_1 = 0;  ///< of a block's results: forward of o; backward as of q and k, as of v
  std::int32_t parts = 1;               ///< blocks that share a tile and write some columns of the result each
};

struct SimtVariant : Facts {
  std::int32_t has_dbias = 0;
  ElementType dbias = ElementType::kF32;
  std::int32_t dbias_over_rows = 0;  ///< it is a sum over the rows
  Tile tiles[3] = {};                ///< forward: the first; backward: of SimtGradient
};

/// Where the tiles stand among the variant's ints, for its tunables.
constexpr std::size_t kSize = sizeof(Tile) / sizeof(std::int32_t);
constexpr std::size_t kTile = sizeof(SimtVariant) / sizeof(std::int32_t) - 3 * kSize;

constexpr std::int32_t kTaken = option::kAll;

int ceil_div(int value, int divisor) {
  return (value + divisor - 1) / divisor;
}

/// Whatever has no option that wants registers.
bool is_plain(const Facts& facts) {
  return facts.aligned != 0 && facts.options == 0;
}

unsigned forward_smem_bytes(const Tile& t) {
  return bytes_of(t.block_n * (t.cols_0 + t.block_m) + t.panel * (t.block_m + t.block_n + 2 * kTransposedPadding));
}

/// At most 99 KB, what a block has on every architecture. few_rows: more blocks, fewer rows that do not exist.
Tile forward_tile(const Facts& facts, bool few_rows) {
  constexpr int kWidestPanel = 128, kNarrowPanel = 64, kMostColumns = 256;
  Tile tile = {.min_blocks = 3};
  tile.panels = ceil_div(facts.head_dim, facts.head_dim <= kWidestPanel ? kWidestPanel : kNarrowPanel);
  tile.panel = round_up(ceil_div(facts.head_dim, tile.panels), 8);
  tile.parts = ceil_div(facts.head_dim_v, kMostColumns);
  tile.cols_0 = round_up(ceil_div(facts.head_dim_v, tile.parts), 32);
  if (tile.panel > 64 || tile.cols_0 > 64) {
    tile.block_n = 32;
    tile.min_blocks = 2;
  }
  if (few_rows && facts.head_dim_v <= 128) {
    tile.block_m = 32;
    tile.block_n = 64;
    tile.threads_x = 16;
    tile.min_blocks = 2;
    tile.cols_0 = round_up(ceil_div(facts.head_dim_v, tile.parts), 64);
  }
  if (!is_plain(facts)) tile.min_blocks = 2;  // options want registers
  return tile;
}

constexpr std::size_t kSavedRowBytes = 2 * sizeof(float);  // lse and delta

/// What one kernel of the backward pass computes: SimtGradient in kernels/simt/backward_tile.cuh.
enum Gradient { kKeysValues, kQueries, kBias };

constexpr int kWide = 128, kNarrow = 64;  // columns of a block's gradients, at most

bool is_resident(const Facts& facts) {
  return std::max(facts.head_dim, facts.head_dim_v) <= kWide;
}

/// As SimtBackwardShape in kernels/simt/backward_tile.cuh lays it out.
unsigned backward_smem_bytes(const Facts& facts, const Tile& t, Gradient gradient) {
  const bool owns_keys = gradient != kQueries;
  const bool resident = is_resident(facts);  // owned tiles stay in shared memory
  const int owned = owns_keys ? t.block_n : t.block_m;
  const int streamed = owns_keys ? t.block_m : t.block_n;
  const int score_tiles = gradient == kKeysValues ? 2 : gradient == kQueries ? 1 : 0;
  const int row_cols = (resident || score_tiles > 0 ? t.cols_0 : 0) + (resident || score_tiles == 2 ? t.cols_1 : 0) +
                       (resident ? 0 : t.panel);
  const int depth = resident ? round_up(facts.head_dim, 8) + round_up(facts.head_dim_v, 8) : t.panel;
  return bytes_of(score_tiles * streamed * owned + streamed * row_cols + depth * (owned + kTransposedPadding)) +
         static_cast<unsigned>(t.block_m) * static_cast<unsigned>(kSavedRowBytes);
}

/// The first that fits into a block's shared memory of these: tiles of 64 x 64 up to 64 columns, of 64 owned and 32
/// streamed rows above or where options want registers. Two blocks fit on a multiprocessor of 227 KB, but for dk and dv
/// from 121 columns on, which take 116 KB. Where columns come in panels and options keep something for every score, the
/// sums go to twice the threads, or else each block has half the columns.
Tile backward_tile(const Facts& facts, Gradient gradient, int max_smem_per_block) {
  const int widest = std::max(facts.head_dim, facts.head_dim_v);
  const bool resident = is_resident(facts);
  const auto make = [&](int block_m, int block_n, int threads, int threads_x, int most_columns = kWide) {
    const int parts = ceil_div(widest, most_columns);
    const auto cols = [&](int head_dim) { return round_up(ceil_div(head_dim, parts), 4 * threads_x); };
    return Tile{.block_m = block_m,
                .block_n = block_n,
                .threads = threads,
                .threads_x = threads_x,
                .min_blocks = threads > 128 ? 1 : 2,
                .panels = resident ? 1 : 2,
                .panel = 64,
                .cols_0 = cols(facts.head_dim),
                .cols_1 = cols(facts.head_dim_v),
                .parts = gradient == kBias ? 1 : parts};
  };
  const bool owns_keys = gradient != kQueries;
  const bool crowded = facts.has(option::kSoftcap | option::kDropout);
  const auto fits = [&](const Tile& tile) {
    return backward_smem_bytes(facts, tile, gradient) <= static_cast<unsigned>(max_smem_per_block);
  };
  Tile tile = owns_keys ? make(32, 64, 128, 16) : make(64, 32, 128, 16);
  if (widest <= 64 && is_plain(facts)) tile = make(64, 64, 128, 16);
  if (!resident && crowded) {
    tile = make(64, 64, 256, 16);
    if (!fits(tile)) tile = owns_keys ? make(32, 64, 128, 16, kNarrow) : make(64, 32, 128, 16, kNarrow);
  }
  return fits(tile) ? tile : make(32, 32, 64, 8);
}

SimtVariant variant_of(const Facts& facts, bool few_rows, int max_smem_per_block) {
  SimtVariant variant = {facts};
  if (facts.is_backward == 0) {
    variant.tiles[0] = forward_tile(facts, few_rows);
    return variant;
  }
  for (const Gradient gradient : {kKeysValues, kQueries, kBias}) {
    variant.tiles[gradient] = backward_tile(facts, gradient, max_smem_per_block);
  }
  return variant;
}

/// A kernel's spec; `constants` come last.
KernelSpec spec_of(const SimtVariant& variant, const Arch& arch, const char* function, const Tile& tile,
                   unsigned smem_bytes, std::vector<Constant> constants) {
  const bool backward = variant.is_backward != 0;
  KernelSpec spec = {.name = function,
                     .source = backward ? "simt/simt_backward.cuh" : "simt/simt_forward.cuh",
                     .function = function,
                     .args = backward ? BackwardOptionArgs::kTypeName : ForwardOptionArgs::kTypeName,
                     .config = constants_of(variant, kTaken),
                     .arch = arch.target,
                     .dynamic_smem_bytes = smem_bytes,
                     .min_blocks = tile.min_blocks};
  spec.config.insert(spec.config.end(), {{"kThreads", std::int64_t{tile.threads}},
                                         {"kBlockM", std::int64_t{tile.block_m}},
                                         {"kBlockN", std::int64_t{tile.block_n}},
                                         {"kSmemBytes", std::int64_t{smem_bytes}},
                                         {"kColumnParts", std::int64_t{tile.parts}}});
  spec.config.insert(spec.config.end(), constants.begin(), constants.end());
  return spec;
}

KernelSpec gradient_spec(const SimtVariant& variant, const Arch& arch, Gradient gradient, const char* function,
                         std::vector<Constant> more = {}) {
  const Tile& tile = variant.tiles[gradient];
  std::vector<Constant> constants = {{"kPanels", std::int64_t{tile.panels}},
                                     {"kPanel", std::int64_t{tile.panel}},
                                     {"kCols0", std::int64_t{tile.cols_0}},
                                     {"kCols1", std::int64_t{tile.cols_1}},
                                     {"kThreadsX", std::int64_t{tile.threads_x}}};
  constants.insert(constants.end(), more.begin(), more.end());
  return spec_of(variant, arch, function, tile, backward_smem_bytes(variant, tile, gradient), std::move(constants));
}

constexpr Tile kPrepareTile = {.threads = 256, .min_blocks = 1};
constexpr Tile kReduceTile = {.threads = 256, .min_blocks = 1};

class SimtFamily final : public Family {
 public:
  SimtFamily() : Family("simt", "every option, dtype and head_dim, on CUDA cores") {}

  [[nodiscard]] bool supports(const Arch& /*arch*/) const override { return true; }

  [[nodiscard]] std::optional<core::Lack> lack(const Problem& p, const DeviceInfo& /*device*/) const override {
    if (auto lack = option_lack(p, kTaken)) return lack;
    return dtype_lack(p, {core::dtype_bit(DType::kF32) | core::dtype_bit(DType::kF16) | core::dtype_bit(DType::kBF16)});
  }

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
    Choice choice;
    choice.variant = variant;
    choice.why = few_rows && !p.is_backward ? "CUDA cores; few rows: low tiles, so that every multiprocessor gets some"
                                            : "CUDA cores, which take every option";
    lay_out(p, device, choice);
    return choice;
  }

  void lay_out(const Problem& p, const DeviceInfo& device, Choice& choice) const override {
    const auto variant = choice.variant.as<SimtVariant>();
    const Tile* tiles = variant.tiles;
    const std::int64_t query_heads = p.num_sequences * p.num_heads_q;
    const auto row_tiles = [&](const Tile& t) { return num_tiles(p.max_seqlen_q, t.block_m) * query_heads * t.parts; };
    const auto key_tiles = [&](const Tile& t) { return num_tiles(p.max_seqlen_k, t.block_n) * t.parts; };
    choice.num_steps = 0;
    if (!p.is_backward) {
      choice.add_step({.blocks = row_tiles(tiles[0])});
    } else {
      choice.add_step({.blocks = row_tiles(kPrepareTile)});
      choice.add_step({.blocks = key_tiles(tiles[kKeysValues]) * p.num_sequences * p.num_heads_k});
      choice.add_step({.blocks = row_tiles(tiles[kQueries])});
    }
    if (variant.has_dbias != 0) {
      const std::int64_t matrices = p.dbias->shape[0] * p.dbias->shape[1];
      const Tile& tile = tiles[kBias];
      if (variant.dbias_over_rows == 0) {
        choice.add_step({.blocks = matrices * num_tiles(p.max_seqlen_q, tile.block_m) * key_tiles(tile)});
      } else {
        choice.add_step({.blocks = query_heads * key_tiles(tile)});
        choice.add_step({.blocks = matrices * num_tiles(p.max_seqlen_k, kReduceTile.threads)});
      }
    }
    constexpr double kForwardTflops = 30, kBackwardTflops = 20;
    const std::size_t main = p.is_backward ? 1 : 0;
    choice.seconds = estimated_seconds(p, device,
                                       {.tflops = p.is_backward ? kBackwardTflops : kForwardTflops,
                                        .block_m = tiles[0].block_m,
                                        .blocks = choice.steps[main].blocks,
                                        .blocks_per_multiprocessor = tiles[0].min_blocks,
                                        .num_steps = choice.num_steps});
  }

  [[nodiscard]] std::vector<KernelSpec> kernels(const Variant& bytes, const Arch& arch) const override {
    const auto variant = bytes.as<SimtVariant>();
    if (variant.is_backward == 0) {
      const Tile& tile = variant.tiles[0];
      return {spec_of(variant, arch, "simt_forward", tile, forward_smem_bytes(tile),
                      {{"kPanels", std::int64_t{tile.panels}},
                       {"kPanel", std::int64_t{tile.panel}},
                       {"kCols", std::int64_t{tile.cols_0}},
                       {"kLanesX", std::int64_t{tile.threads_x}}})};
    }
    std::vector<KernelSpec> specs = {spec_of(variant, arch, "simt_backward_prepare", kPrepareTile, 0, {}),
                                     gradient_spec(variant, arch, kKeysValues, "simt_backward_keys"),
                                     gradient_spec(variant, arch, kQueries, "simt_backward_queries")};
    if (variant.has_dbias == 0) return specs;
    const Constant element = {"kDbiasElement", element_constant(variant.dbias)};
    if (variant.dbias_over_rows == 0) {
      specs.push_back(gradient_spec(variant, arch, kBias, "simt_dbias", {element}));
    } else {
      specs.push_back(gradient_spec(variant, arch, kBias, "simt_dbias_over_rows"));
      specs.push_back(spec_of(variant, arch, "simt_dbias_reduce", kReduceTile, 0, {element}));
    }
    return specs;
  }

  [[nodiscard]] Workspace workspace(const Problem& p, const Choice& choice) const override {
    Workspace workspace;
    if (!p.is_backward) return workspace;
    const std::int64_t heads = p.q.shape[0] * p.num_heads_q;
    const bool over_rows = choice.variant.as<SimtVariant>().dbias_over_rows != 0;
    workspace.add({"saved rows", heads * p.q.shape[2] * static_cast<std::int64_t>(kSavedRowBytes)});
    workspace.add({"sums of dbias", over_rows ? heads * p.max_seqlen_k * std::int64_t{sizeof(float)} : 0});
    return workspace;
  }

  void launch(const Launch& launch) const override {
    const Problem& p = launch.problem;
    if (!p.is_backward) {
      ForwardOptionArgs args = {forward_args(p, nullptr), option_args_of(p)};
      launch.run(0, args);
      return;
    }
    BackwardOptionArgs args = backward_option_args(backward_args(p, launch.region(0)), p);
    args.dbias_sums = launch.region<float>(1);
    for (std::size_t i = 0; i < launch.choice.num_steps; ++i) launch.run(i, args);
  }

  [[nodiscard]] std::vector<Variant> examples(const Arch& arch) const override;

  [[nodiscard]] std::span<const Tunable> tunables(const Variant& variant) const override {
    static constexpr Tunable kForward[] = {{"block_m", kTile}, {"block_n", kTile + 1}, {"threads", kTile + 2},
                                           {"threads_x", kTile + 3}, {"min_blocks", kTile + 4}};
    static constexpr Tunable kBackward[] = {
        {"keys_block_m", kTile},            {"keys_block_n", kTile + 1},
        {"keys_threads", kTile + 2},        {"keys_threads_x", kTile + 3},
        {"keys_min_blocks", kTile + 4},     {"queries_block_m", kTile + kSize},
        {"queries_block_n", kTile + kSize + 1}, {"queries_threads", kTile + kSize + 2},
        {"queries_threads_x", kTile + kSize + 3}, {"queries_min_blocks", kTile + kSize + 4}};
    if (variant.as<SimtVariant>().is_backward != 0) return kBackward;
    return kForward;
  }
};

/// A covering set, not the product: every dtype, the head_dims at which tiles change, each option alone, and all that go
/// together; tensors that are not aligned, few rows, both kinds of dbias.
std::vector<Variant> SimtFamily::examples(const Arch& arch) const {
  using enum ElementType;
  using enum MaskKind;
  constexpr auto kRest = option::kSoftcap | option::kAlibi | option::kDropout;
  struct Case {
    ElementType element;
    int head_dim, head_dim_v;
    MaskKind mask;
    std::int32_t options = 0;
    ElementType bias = kF32;
    std::optional<ElementType> dbias = {};
    bool over_rows = false;
  };
  static constexpr Case kCases[] = {
      {kF16, 64, 64, kCausal},
      {kF32, 128, 128, kCausal},
      {kBF16, 24, 24, kFull},
      {kBF16, 40, 40, kFull, option::kBias, kF16, kF32},
      {kF32, 124, 124, kWindow, option::kBias, kF16, kF16},
      {kF32, 40, 40, kFull, option::kSoftcap},
      {kBF16, 96, 96, kFull, option::kAlibi},
      {kF16, 256, 256, kFull, option::kDropout},
      {kBF16, 512, 512, kFull, option::kVarlen},
      {kF16, 17, 300, kFull, option::kBoolMask},
      {kBF16, 64, 64, kWindow, option::kBias, kF32, kBF16, true},
      {kF32, 64, 64, kWindow, kRest | option::kVarlen},
      {kBF16, 128, 128, kWindow, kRest | option::kBoolMask | option::kBias, kF16, kF16}};
  std::vector<Variant> variants;
  for (const Case& c : kCases) {
    Facts facts = {.element = c.element,
                   .head_dim = c.head_dim,
                   .head_dim_v = c.head_dim_v,
                   .mask = c.mask,
                   .options = c.options,
                   .bias = c.bias,
                   .aligned = c.head_dim % 16 == 0};
    for (const bool few_rows : {false, true}) {
      if (few_rows && facts.options != 0) continue;
      variants.emplace_back(variant_of(facts, few_rows, arch.max_smem_per_block));
    }
    facts.is_backward = 1;
    SimtVariant backward = variant_of(facts, false, arch.max_smem_per_block);
    backward.has_dbias = c.dbias.has_value();
    backward.dbias = c.dbias.value_or(kF32);
    backward.dbias_over_rows = c.over_rows;
    variants.emplace_back(backward);
  }
  return variants;
}

}  // namespace

std::unique_ptr<const Family> simt_family() {
  return std::make_unique<const SimtFamily>();
}

}  // namespace attend::cuda
