// The kernel family sm90_f32_forward. It computes float32 forward passes on Hopper's tensor cores. Each float32
// number is split into two float16 numbers, called pieces, and the kernel adds products of pieces.
#include <algorithm>

#include "cuda/launch/block_map.hpp"
#include "cuda/launch/estimate.hpp"
#include "cuda/launch/families.hpp"
#include "cuda/launch/kernel_args.hpp"
#include "cuda/launch/sm90_f32_forward_variant.hpp"
#include "cuda/launch/sm90_forward_variant.hpp"
#include "cuda/launch/sm90_mask_steps.hpp"
#include "cuda/launch/tensor_maps.hpp"
#include "kernels/attention/work.cuh"
#include "kernels/sm90/sm90_f32_args.cuh"

namespace attend::cuda {
namespace {

using core::Problem;

// Largest head_dim at which registers suffice for all options.
constexpr std::int64_t kNarrow = 64;
// The last tile may extend past the end of a sequence. Its positions must still fit in an int.
constexpr std::int64_t kMostLength = (std::int64_t{1} << 31) - 1024;
constexpr std::int64_t kMostTiles = (std::int64_t{1} << 31) - 1;  // the kernels count tiles in 32 bits

/// The kernels after those that convert a boolean mask, in launch order.
enum Step { kSplit, kMain, kWide };

/// The regions of the workspace, in order.
enum Region { kCounters, kQPieces, kKPieces, kVPieces, kQUnits, kKeyUnits, kMaskTiles };

/// Layout of the float16 pieces in the workspace.
struct Layout {
  const Problem& p;
  F32PieceRows q, k;
  std::int64_t heads_q, heads_k;  ///< number of heads, summed over all batch entries

  Layout(const Problem& problem, const Sm90F32Tile& tile)
      : p(problem),
        q(F32PieceRows::of(p.q.shape[2], p.max_seqlen_q, p.varlen.has_value(), p.num_sequences, kSm90ConsumerRows)),
        k(F32PieceRows::of(p.k.shape[2], p.max_seqlen_k, p.varlen.has_value(), p.num_sequences, tile.block_n)),
        heads_q(p.q.shape[0] * p.num_heads_q),
        heads_k(p.q.shape[0] * p.num_heads_k),
        block_n(tile.block_n) {}

  [[nodiscard]] static std::int64_t bytes(std::int64_t heads, std::int64_t rows, std::int64_t head_dim) {
    return kPieces * heads * rows * f32_piece_pitch(static_cast<int>(head_dim)) * dtype_bytes(DType::kF16);
  }
  [[nodiscard]] std::int64_t unit_bytes(std::int64_t heads, std::int64_t rows, int block) const {
    return heads * rows / block * std::int64_t{sizeof(float)};
  }
  /// Returns the size in bytes of the counter with the next tile number, plus one flag for each head.
  [[nodiscard]] std::int64_t counter_bytes() const {
    return (1 + p.num_sequences * p.num_heads_k) * std::int64_t{sizeof(uint32)};
  }
  [[nodiscard]] std::int64_t split_blocks() const {
    return p.num_sequences * (q.blocks * p.num_heads_q + 2 * k.blocks * p.num_heads_k);
  }
  [[nodiscard]] TensorMapArg map(void* pieces, std::int64_t heads, std::int64_t rows, std::int64_t head_dim,
                                 int box_rows) const {
    const std::int64_t pitch = f32_piece_pitch(static_cast<int>(head_dim));
    const Tensor t = {.data = pieces,
                      .dtype = DType::kF16,
                      .device = p.q.device,
                      .shape = {kPieces, heads, rows, pitch},
                      .stride = {heads * rows * pitch, rows * pitch, pitch, 1}};
    return row_map(t, box_rows, p.q.data);
  }

  int block_n;
};

KernelSpec spec_of(const char* function, const char* source, const char* args, const Arch& arch, int smem_bytes = 0) {
  return {.name = function,
          .source = source,
          .function = function,
          .args = args,
          .config = {},
          .arch = arch.target,
          .dynamic_smem_bytes = static_cast<unsigned>(smem_bytes)};
}

/// The main kernel supports only block masks, so a boolean mask is converted to lists.
Sm90MaskLists mask_lists_of(const Sm90F32ForwardVariant& v) {
  return {.by_rows_rows = v.tile.block_m(), .by_rows_keys = v.tile.block_n};
}
std::size_t steps_before(const Sm90F32ForwardVariant& v) {
  return v.lists_from_mask != 0 ? mask_lists_of(v).num_steps() : 0;
}

double tflops_of(const Sm90F32ForwardVariant& v) {
  const double rate = std::max(v.head_dim, v.head_dim_v) <= 64 ? 185 : 205;
  return v.tile.consumers == 1 ? 0.6 * rate : rate;
}

class Sm90F32Forward final : public Family {
 public:
  Sm90F32Forward() : Family("sm90_f32_forward", "float32 on Hopper's tensor cores, by products of float16 pieces") {
    has_backward = false;
    takes = (option::kAll & ~(option::kDropout | option::kPhiloxState)) | option::kCustomScore | option::kBlockMask;
    dtypes.bits = core::dtype_bit(DType::kF32);
  }

  [[nodiscard]] bool supports(const Arch& arch) const override { return arch.wgmma; }

  [[nodiscard]] Choice choose(const Problem& p, const DeviceInfo& device) const override {
    Facts facts = facts_of(p, true);
    facts.see_mask_as_blocks();
    Sm90F32ForwardVariant tall = {facts};
    const Facts of_wide = facts_of(p, false);
    tall.wide = simt_variant(of_wide, false, device.max_smem_per_block).forward;
    tall.wide_options = of_wide.options;
    Sm90F32ForwardVariant low = tall;
    tall.tile = sm90_f32_forward_tile(facts, false);
    low.tile = sm90_f32_forward_tile(facts, true);
    tall.tile.schedule = low.tile.schedule = sm90_forward_schedule(facts, p.max_seqlen_k);
    Choice choice = {.variant = tall, .why = "Hopper's tensor cores: three float16 products for each float32 product"};
    lay_out(p, device, choice);
    Choice other = {.variant = low, .why = "Hopper's tensor cores: few rows, so tiles of 64"};
    lay_out(p, device, other);
    if (other.seconds < choice.seconds) choice = other;
    return choice;
  }

  void lay_out(const Problem& p, const DeviceInfo& device, Choice& choice) const override {
    const auto v = choice.variant.as<Sm90F32ForwardVariant>();
    const Sm90ForwardGrid grid = grid_of(p, v, device.num_multiprocessors);
    const Layout layout(p, v.tile);
    choice.num_steps = 0;
    choice.seconds = 0;
    if (v.lists_from_mask != 0) {
      const Sm90MaskSteps mask_steps(p, mask_lists_of(v));
      mask_steps.add_steps(choice);
      choice.seconds = mask_steps.seconds(device);
    }
    choice.add_step({.blocks = layout.split_blocks()});
    choice.add_step({.blocks = grid.blocks});
    choice.add_step(
        {.blocks = num_tiles(p.max_seqlen_q, v.wide.block_m) * p.num_sequences * p.num_heads_q * v.wide.columns.count});
    // The kernel that splits numbers reads float32 and writes the same number of bytes.
    constexpr double kBytesPerSecond = 3.5e12, kBytesOfElement = 8;
    // Latency in seconds of three dependent kernels, in addition to the launch overhead.
    constexpr double kStart = 8e-6;
    const auto elements = static_cast<double>(p.q.numel() + p.k.numel() + p.v.numel());
    choice.seconds += kStart + elements * kBytesOfElement / kBytesPerSecond +
                      estimated_seconds(p, device,
                                        {.tflops = tflops_of(v),
                                         .block_m = v.tile.block_m(),
                                         .blocks = grid.total_tiles,
                                         .blocks_per_multiprocessor = 1,
                                         .num_steps = choice.num_steps + 1});  // one more launch clears the counters
  }

  [[nodiscard]] std::vector<KernelSpec> kernels(const Variant& variant, const Arch& arch) const override {
    // These kernels share code with families that support every option, and that code reads the constants of all
    // options.
    constexpr std::int32_t kAsked = option::kAll | option::kHugeTransform | option::kCustomScore | option::kRing;
    const auto v = variant.as<Sm90F32ForwardVariant>();
    KernelSpec split = spec_of("sm90_f32_split", "sm90/sm90_f32_split.cuh", Sm90F32SplitArgs::kTypeName, arch);
    split.config = constants_of(
        v, kAsked, {{"kThreads", std::int64_t{kF32SplitThreads}}, {"kBlockN", std::int64_t{v.tile.block_n}}});
    KernelSpec main =
        spec_of("sm90_f32_forward", "sm90/sm90_f32_forward.cuh", Sm90F32ForwardArgs::kTypeName, arch, v.smem_bytes());
    main.config = config_of<Sm90F32Tile>(v, kAsked | option::kBlockMask, kSm90F32ForwardFields, v.tile);
    for (const char* constant :
         {"kOverlap", "kSpeculate", "kPutsAside", "kTermsTiles", "kIsCached", "kHasBoxes", "kSplitsKeys"}) {
      main.config.push_back({constant, false});
    }
    for (const char* constant : {"kQBuffers", "kKeyLoaders"}) main.config.push_back({constant, std::int64_t{1}});
    main.config.push_back({"kSmemBytes", std::int64_t{v.smem_bytes()}});
    KernelSpec wide =
        spec_of("sm90_f32_wide", "sm90/sm90_f32_wide.cuh", Sm90F32WideArgs::kTypeName, arch, v.wide.smem_bytes());
    Facts facts = v;
    facts.negate_scores = 0;
    facts.options = v.wide_options;
    wide.config = config_of<SimtForwardTile>(facts, kAsked | option::kBlockMap, kSimtForwardFields, v.wide);
    wide.min_blocks = v.wide.min_blocks;
    std::vector<KernelSpec> specs;
    if (v.lists_from_mask != 0) mask_lists_of(v).add_specs(arch, specs);
    specs.insert(specs.end(), {split, main, wide});
    return specs;
  }

  [[nodiscard]] Workspace workspace(const Problem& p, const Choice& choice) const override {
    const auto v = choice.variant.as<Sm90F32ForwardVariant>();
    const Layout layout(p, v.tile);
    Workspace workspace;
    workspace.add({.name = "next tile and wide heads", .bytes = layout.counter_bytes(), .zeroed = true});
    workspace.add({.name = "pieces of q", .bytes = Layout::bytes(layout.heads_q, layout.q.rows, p.head_dim)});
    workspace.add({.name = "pieces of k", .bytes = Layout::bytes(layout.heads_k, layout.k.rows, p.head_dim)});
    workspace.add({.name = "pieces of v", .bytes = Layout::bytes(layout.heads_k, layout.k.rows, p.head_dim_v)});
    workspace.add({.name = "units of q", .bytes = layout.unit_bytes(layout.heads_q, layout.q.rows, kSm90ConsumerRows)});
    workspace.add(
        {.name = "units of keys", .bytes = 2 * layout.unit_bytes(layout.heads_k, layout.k.rows, layout.block_n)});
    workspace.add({.name = "tiles of the mask",
                   .bytes = v.lists_from_mask != 0 ? Sm90MaskSteps(p, mask_lists_of(v)).bytes() : 0});
    return workspace;
  }

  void launch(const Launch& launch) const override {
    const Problem& p = launch.problem;
    if (p.q.numel() == 0) return;  // a tensor without elements has no address for a tensor map
    const auto v = launch.choice.variant.as<Sm90F32ForwardVariant>();
    const Layout layout(p, v.tile);
    Sm90F32SplitArgs split = {
        .base = forward_args(p, nullptr, true), .options = option_args_of(p), .pieces = pieces_of(launch, layout)};
    split.options.block_mask = mask_lists_of(v).args(launch, launch.region<std::byte>(kMaskTiles)).by_rows;
    const std::size_t first = steps_before(v);
    launch.run(first + kSplit, split);
    const Sm90ForwardGrid grid = grid_of(p, v, launch.choice.steps[first + kMain].blocks);
    Sm90F32ForwardArgs main = {};
    main.q_map = layout.map(split.pieces.q, layout.heads_q, layout.q.rows, p.head_dim, v.tile.block_m());
    main.k_map = layout.map(split.pieces.k, layout.heads_k, layout.k.rows, p.head_dim, v.tile.block_n);
    main.v_map = layout.map(split.pieces.v, layout.heads_k, layout.k.rows, p.head_dim_v, v.tile.block_n);
    main.next_tile = launch.region<uint32>(kCounters);
    main.total_tiles = grid.total_tiles;
    main.row_tiles = grid.row_tiles;
    main.section_heads = grid.section_heads;
    main.scale_log2 = sm90_folded_scale(p);
    main.base = split.base;
    main.base.scale = made_up_scale(p, true);
    main.options = split.options;
    main.pieces = split.pieces;
    launch.run(first + kMain, main);
    Sm90F32WideArgs wide = {};
    wide.base = forward_args(p, nullptr);
    wide.options = split.options;
    set_block_map(wide.options, p);
    wide.wide = split.pieces.wide;
    launch.run(first + kWide, wide);
  }

  [[nodiscard]] std::span<const Tunable> tunables(const Variant& /*variant*/) const override {
    static const std::vector<Tunable> kAll =
        tunables_of<Sm90F32Tile>(kSm90F32ForwardFields, Path<&Sm90F32ForwardVariant::tile>::place());
    return kAll;
  }

 protected:
  [[nodiscard]] std::optional<core::Lack> lack_of_its_own(const Problem& p,
                                                          const DeviceInfo& /*device*/) const override {
    if (auto lack = custom_score_lack(p, option::kRing)) return lack;
    for (const auto& [tensor, head_dim] : {std::pair{"q", p.head_dim}, {"v", p.head_dim_v}}) {
      if (head_dim < kF32LeastHeadDim || head_dim > kF32LargestHeadDim) {
        return core::Lack{tensor, "head_dim", head_dim, core::Range{kF32LeastHeadDim, kF32LargestHeadDim}};
      }
    }
    if (p.alibi_slopes && (p.mask || p.block_mask != nullptr) && std::max(p.head_dim, p.head_dim_v) > kNarrow) {
      // The kernel would spill registers.
      return core::Lack{nullptr, "alibi_slopes", "given", "none with a mask and a head_dim above 64"};
    }
    if (auto lack = length_lack(p, kMostLength)) return lack;
    if (p.mask) {
      constexpr Sm90MaskLists kAny = {.by_rows_rows = kSm90ConsumerRows, .by_rows_keys = core::kMaskTile};
      if (auto lack = Sm90MaskSteps(p, kAny).lack()) return lack;
    }
    const std::int64_t row_tiles = num_tiles(p.max_seqlen_q, kSm90ConsumerRows) * p.num_heads_q;
    const std::int64_t key_tiles = 2 * num_tiles(p.max_seqlen_k, kSm90ConsumerRows) * p.num_heads_k;
    if ((row_tiles + key_tiles) * p.num_sequences > kMostTiles) {
      return core::Lack{"q", "rows and keys of all sequences and heads", "too many", "2^31 - 1 tiles of 64"};
    }
    return std::nullopt;
  }

 private:
  static Sm90ForwardGrid grid_of(const Problem& p, const Sm90F32ForwardVariant& v, std::int64_t blocks) {
    const std::int64_t bytes_per_key = kPieces * (p.head_dim + p.head_dim_v) * dtype_bytes(DType::kF16);
    return Sm90ForwardGrid::of(p.num_sequences, p.num_heads_q, p.num_heads_k, p.max_seqlen_q, p.max_seqlen_k,
                               bytes_per_key, v.tile.block_m(), blocks);
  }

  static F32Pieces pieces_of(const Launch& launch, const Layout& layout) {
    return {.q = launch.region<unsigned short>(kQPieces),
            .k = launch.region<unsigned short>(kKPieces),
            .v = launch.region<unsigned short>(kVPieces),
            .q_units = launch.region<float>(kQUnits),
            .key_units = launch.region<float>(kKeyUnits),
            .wide = launch.region<uint32>(kCounters) + 1,
            .q_rows = layout.q.rows,
            .k_rows = layout.k.rows,
            .q_blocks = static_cast<uint32>(layout.q.blocks),
            .k_blocks = static_cast<uint32>(layout.k.blocks)};
  }
};

}  // namespace

std::unique_ptr<const Family> sm90_f32_forward_family() {
  return std::make_unique<const Sm90F32Forward>();
}

}  // namespace attend::cuda
