// The kernel family sm90_fp8_forward. It computes forward passes of 8-bit floats (e4m3) on Hopper's tensor cores.
#include <algorithm>
#include <array>

#include "cuda/launch/estimate.hpp"
#include "cuda/launch/families.hpp"
#include "cuda/launch/kernel_args.hpp"
#include "cuda/launch/sm90_forward_variant.hpp"
#include "cuda/launch/sm90_fp8_forward_variant.hpp"
#include "cuda/launch/tensor_maps.hpp"
#include "kernels/attention/work.cuh"
#include "kernels/sm90/sm90_fp8_args.cuh"

namespace attend::cuda {
namespace {

using core::Problem;

constexpr std::array kHeadDims = {64, 96, 128};
static_assert(core::kDescaleKeys == kFp8BlockKeys);
// The last tile may extend past the end of a sequence. Its positions must still fit in an int.
constexpr std::int64_t kMostLength = (std::int64_t{1} << 31) - 1024;
constexpr std::int64_t kMostTiles = (std::int64_t{1} << 31) - 1;  // the kernels count tiles in 32 bits

/// The kernels, in launch order.
enum Step { kTranspose, kMain };

/// The regions of the workspace, in order.
enum Region { kNextTile, kValues };

/// Layout of the transposed v in the workspace.
struct Layout {
  const Problem& p;
  std::int64_t tiles;    ///< tiles of a head in memory
  std::int64_t longest;  ///< tiles of the longest sequence
  std::int64_t heads;    ///< number of KV heads, summed over all batch entries

  Layout(const Problem& problem, const Sm90Fp8Tile& tile) : p(problem), heads(p.k.shape[0] * p.num_heads_k) {
    const auto rows =
        F32PieceRows::of(p.k.shape[2], p.max_seqlen_k, p.varlen.has_value(), p.num_sequences, tile.block_n);
    tiles = rows.rows / tile.block_n;
    longest = rows.blocks;
  }
  [[nodiscard]] std::int64_t bytes() const { return heads * tiles * p.head_dim_v * kFp8PanelKeys; }
  [[nodiscard]] TensorMapArg map(void* values) const {
    const std::int64_t rows = tiles * p.head_dim_v;
    const Tensor t = {.data = values,
                      .dtype = DType::kF8E4M3,
                      .device = p.q.device,
                      .shape = {1, heads, rows, kFp8PanelKeys},
                      .stride = {heads * rows * kFp8PanelKeys, rows * kFp8PanelKeys, kFp8PanelKeys, 1}};
    return row_map(t, static_cast<int>(p.head_dim_v), p.q.data);
  }
};

Fp8Descale descale_of(const std::optional<Tensor>& t) {
  if (!t) return {};
  return {static_cast<const float*>(t->data), t->stride[0], t->stride[1], t->stride[2]};
}

bool has_key_blocks(const Problem& p) {
  const auto differs = [](const std::optional<Tensor>& t) { return t && t->shape[2] > 1 && t->stride[2] != 0; };
  return differs(p.k_descale) || differs(p.v_descale);
}

KernelSpec spec_of(const char* function, const char* source, const char* args, const Arch& arch, int smem_bytes = 0) {
  return {.name = function,
          .source = source,
          .function = function,
          .args = args,
          .config = {},
          .arch = arch.target,
          .dynamic_smem_bytes = static_cast<unsigned>(smem_bytes)};
}

class Sm90Fp8Forward final : public Family {
 public:
  Sm90Fp8Forward() : Family("sm90_fp8_forward", "8-bit floats (e4m3) on Hopper's tensor cores") {
    has_backward = false;
    takes = option::kWindow | option::kVarlen;
    dtypes.bits = core::dtype_bit(DType::kF8E4M3);
  }

  [[nodiscard]] bool supports(const Arch& arch) const override { return arch.wgmma; }

  [[nodiscard]] Choice choose(const Problem& p, const DeviceInfo& device) const override {
    Sm90Fp8ForwardVariant v = {facts_of(p, true)};
    v.aligned = 1;  // lack_of_its_own() refuses unaligned tensors
    v.key_blocks = has_key_blocks(p) ? 1 : 0;
    v.tile = sm90_fp8_forward_tile(v, v.key_blocks != 0, false);
    v.tile.schedule = sm90_forward_schedule(v, p.max_seqlen_k);
    Choice choice = {.variant = v, .why = "Hopper's tensor cores: 8-bit products, summed in float32"};
    lay_out(p, device, choice);
    v.tile = sm90_fp8_forward_tile(v, v.key_blocks != 0, true);
    v.tile.schedule = sm90_forward_schedule(v, p.max_seqlen_k);
    Choice low = {.variant = v, .why = "Hopper's tensor cores: few rows, so tiles of 64"};
    lay_out(p, device, low);
    return low.seconds < choice.seconds ? low : choice;
  }

  void lay_out(const Problem& p, const DeviceInfo& device, Choice& choice) const override {
    const auto v = choice.variant.as<Sm90Fp8ForwardVariant>();
    const Sm90ForwardGrid grid = grid_of(p, v, device.num_multiprocessors);
    choice.num_steps = 0;
    choice.add_step({.blocks = p.num_sequences * p.num_heads_k * Layout(p, v.tile).longest});
    choice.add_step({.blocks = grid.blocks});
    // The first kernel reads and writes v.
    constexpr double kBytesPerSecond = 3e12;
    const double rate_of_all = std::max(v.head_dim, v.head_dim_v) <= 64 ? 600 : 900;
    const double rate = v.tile.consumers == 1 ? 0.6 * rate_of_all : rate_of_all;
    choice.seconds =
        static_cast<double>(2 * p.v.numel()) / kBytesPerSecond + estimated_seconds(p, device,
                                                                                   {.tflops = rate,
                                                                                    .block_m = v.tile.block_m(),
                                                                                    .blocks = grid.total_tiles,
                                                                                    .blocks_per_multiprocessor = 1,
                                                                                    .num_steps = choice.num_steps});
  }

  [[nodiscard]] std::vector<KernelSpec> kernels(const Variant& variant, const Arch& arch) const override {
    // These kernels share code with families that support every option, and that code reads the constants of all
    // options.
    constexpr std::int32_t kAsked =
        option::kAll | option::kHugeTransform | option::kCustomScore | option::kRing | option::kBlockMask;
    const auto v = variant.as<Sm90Fp8ForwardVariant>();
    KernelSpec transpose =
        spec_of("sm90_fp8_transpose", "sm90/sm90_fp8_transpose.cuh", Sm90Fp8TransposeArgs::kTypeName, arch);
    Facts of_values = v;
    // The values do not depend on these properties, so the kernel is compiled only once.
    of_values.head_dim = v.head_dim_v;
    of_values.mask = MaskKind::kFull;
    of_values.element = ElementType::kF32;
    of_values.negate_scores = 0;
    transpose.config =
        constants_of(of_values, kAsked,
                     {{"kThreads", std::int64_t{kFp8TransposeThreads}}, {"kBlockN", std::int64_t{v.tile.block_n}}});
    KernelSpec main =
        spec_of("sm90_fp8_forward", "sm90/sm90_fp8_forward.cuh", Sm90Fp8ForwardArgs::kTypeName, arch, v.smem_bytes());
    main.config = config_of<Sm90Fp8ForwardVariant>(v, kAsked, kSm90Fp8ForwardFields, v);
    for (const char* constant : {"kOverlap", "kPutsAside", "kTermsTiles", "kIsCached", "kHasBoxes", "kSplitsKeys"}) {
      main.config.push_back({constant, false});
    }
    for (const char* constant : {"kQBuffers", "kKeyLoaders"}) main.config.push_back({constant, std::int64_t{1}});
    return {transpose, main};
  }

  [[nodiscard]] Workspace workspace(const Problem& p, const Choice& choice) const override {
    const auto v = choice.variant.as<Sm90Fp8ForwardVariant>();
    const bool dynamic = v.tile.schedule == Schedule::kDynamic;
    Workspace workspace;
    workspace.add({.name = "next tile", .bytes = dynamic ? std::int64_t{sizeof(uint32)} : 0, .zeroed = true});
    workspace.add({.name = "transposed v", .bytes = Layout(p, v.tile).bytes()});
    return workspace;
  }

  void launch(const Launch& launch) const override {
    const Problem& p = launch.problem;
    if (p.q.numel() == 0) return;  // a tensor without elements has no address for a tensor map
    const auto v = launch.choice.variant.as<Sm90Fp8ForwardVariant>();
    const Layout layout(p, v.tile);
    Sm90Fp8TransposeArgs transpose = {.base = forward_args(p, nullptr, true),
                                      .options = option_args_of(p),
                                      .to = launch.region<unsigned char>(kValues),
                                      .tiles = layout.tiles,
                                      .blocks = static_cast<uint32>(layout.longest),
                                      .unused = 0};
    launch.run(kTranspose, transpose);
    const Sm90ForwardGrid grid = grid_of(p, v, launch.choice.steps[kMain].blocks);
    Sm90Fp8ForwardArgs main = {};
    main.q_map = row_map(p.q, v.tile.block_m(), p.q.data);
    main.k_map = row_map(p.k, v.tile.block_n, p.q.data);
    main.v_map = layout.map(transpose.to);
    main.next_tile = launch.region<uint32>(kNextTile);
    main.total_tiles = grid.total_tiles;
    main.row_tiles = grid.row_tiles;
    main.section_heads = grid.section_heads;
    main.scale_log2 = sm90_folded_scale(p);
    main.base = transpose.base;
    main.options = transpose.options;
    main.q_descale = descale_of(p.q_descale);
    main.k_descale = descale_of(p.k_descale);
    main.v_descale = descale_of(p.v_descale);
    launch.run(kMain, main);
  }

  [[nodiscard]] std::span<const Tunable> tunables(const Variant& /*variant*/) const override {
    static const std::vector<Tunable> kAll = tunables_of<Sm90Fp8ForwardVariant>(kSm90Fp8ForwardFields);
    return kAll;
  }

 protected:
  [[nodiscard]] std::optional<core::Lack> lack_of_its_own(const Problem& p,
                                                          const DeviceInfo& /*device*/) const override {
    constexpr core::DTypes kOutputs = {core::dtype_bit(DType::kF32) | core::dtype_bit(DType::kF16) |
                                       core::dtype_bit(DType::kBF16)};
    if (!kOutputs.has(p.o.dtype)) return core::Lack{"o", "dtype", dtype_name(p.o.dtype), kOutputs};
    if (auto lack = head_dim_lack(p, kHeadDims, 0, true)) return lack;
    if (auto lack = length_lack(p, kMostLength)) return lack;
    const std::int64_t row_tiles = num_tiles(p.max_seqlen_q, kSm90ConsumerRows) * p.num_heads_q;
    const std::int64_t value_rows = (p.k.shape[2] + p.num_sequences * kFp8BlockKeys) * 2 * p.head_dim_v;
    if (row_tiles * p.num_sequences > kMostTiles || value_rows > kMostTiles * kFp8BlockKeys / 2) {
      return core::Lack{"q", "rows and keys of all sequences and heads", "too many", "2^31 - 1 tiles of 64"};
    }
    return tensor_map_lack(p);
  }

 private:
  static Sm90ForwardGrid grid_of(const Problem& p, const Sm90Fp8ForwardVariant& v, std::int64_t blocks) {
    return Sm90ForwardGrid::of(p.num_sequences, p.num_heads_q, p.num_heads_k, p.max_seqlen_q, p.max_seqlen_k,
                               p.head_dim + p.head_dim_v, v.tile.block_m(), blocks);
  }
};

}  // namespace

std::unique_ptr<const Family> sm90_fp8_forward_family() {
  return std::make_unique<const Sm90Fp8Forward>();
}

}  // namespace attend::cuda
