// The kernel family simt. It runs on CUDA cores and supports every problem that the interface allows.
#include <algorithm>

#include "cuda/launch/block_map.hpp"
#include "cuda/launch/captured_steps.hpp"
#include "cuda/launch/estimate.hpp"
#include "cuda/launch/families.hpp"
#include "cuda/launch/kernel_args.hpp"
#include "cuda/launch/row_logit_steps.hpp"
#include "cuda/launch/simt_variant.hpp"
#include "kernels/attention/saved_row.cuh"
#include "kernels/attention/work.cuh"

namespace attend::cuda {
namespace {

using core::Problem;

constexpr std::int32_t kTaken =
    option::kAll | option::kHugeTransform | option::kCustomScore | option::kBlockMap | option::kRing;

using enum SimtGradient;

/// Returns the spec of a kernel. The caller adds the Config.
KernelSpec spec_of(const SimtVariant& variant, const Arch& arch, const char* function, int smem_bytes, int min_blocks) {
  const bool backward = variant.is_backward != 0;
  return {.name = function,
          .source = backward ? "simt/simt_backward.cuh" : "simt/simt_forward.cuh",
          .function = function,
          .args = backward ? BackwardOptionArgs::kTypeName : ForwardOptionArgs::kTypeName,
          .config = {},
          .arch = arch.target,
          .dynamic_smem_bytes = static_cast<unsigned>(smem_bytes),
          .min_blocks = min_blocks};
}

KernelSpec forward_spec(const SimtVariant& variant, const Arch& arch) {
  const SimtForwardTile& tile = variant.forward;
  KernelSpec spec = spec_of(variant, arch, "simt_forward", tile.smem_bytes(), tile.min_blocks);
  spec.config = config_of<SimtForwardTile>(variant, kTaken, kSimtForwardFields, tile);
  return spec;
}

KernelSpec gradient_spec(const SimtVariant& variant, const Arch& arch, const SimtBackwardTile& tile,
                         const char* function) {
  const SimtGradientKernel kernel = {.tile = tile, .has_lse_rounding = variant.has_lse_rounding()};
  KernelSpec spec = spec_of(variant, arch, function, tile.smem_bytes(), tile.min_blocks);
  spec.config = config_of<SimtGradientKernel>(variant, kTaken, kSimtGradientFields, kernel);
  return spec;
}

/// Query rows and threads per block of the kernels without tiles. They process rows or keys one at a time.
constexpr int kPlainRows = 64;
constexpr int kPlainThreads = 256;

KernelSpec plain_spec(const SimtVariant& variant, const Arch& arch, const char* function) {
  constexpr int kPlainKeys = 64, kNoSmem = 0, kAllColumns = 1;
  KernelSpec spec = spec_of(variant, arch, function, kNoSmem, 1);
  spec.config = constants_of(variant, kTaken,
                             {{"kThreads", kPlainThreads},
                              {"kBlockM", kPlainRows},
                              {"kBlockN", kPlainKeys},
                              {"kSmemBytes", kNoSmem},
                              {"kColumnParts", kAllColumns},
                              {"kHasLseRounding", variant.has_lse_rounding()}});
  return spec;
}

/// Returns the tunable members of the tile for one gradient.
std::vector<Tunable> tunables_at(SimtGradient gradient, const char* prefix) {
  static_assert(Path<&SimtGradientKernel::tile>::place() == 0);
  const std::size_t before = static_cast<std::size_t>(gradient) * IntsOf<SimtBackwardTile>().size();
  return tunables_of<SimtGradientKernel>(kSimtGradientFields, Path<&SimtVariant::gradients>::place() + before, prefix);
}

class SimtFamily final : public Family {
 public:
  SimtFamily() : Family("simt", "every option, dtype and head_dim, on CUDA cores") {
    is_fallback = true;
    takes = kTaken | option::kCapturedGradients | option::kBlockMask;
    dtypes.bits = core::dtype_bit(DType::kF32) | core::dtype_bit(DType::kF16) | core::dtype_bit(DType::kBF16);
  }

  [[nodiscard]] bool supports(const Arch& /*arch*/) const override { return true; }

  [[nodiscard]] Choice choose(const Problem& p, const DeviceInfo& device) const override {
    constexpr std::int64_t kLowTile = 64, kFewRows = 32;
    const bool few_rows =
        p.max_seqlen_q <= kFewRows ||
        num_tiles(p.max_seqlen_q, kLowTile) * p.num_sequences * p.num_heads_q < device.num_multiprocessors;
    SimtVariant variant = simt_variant(facts_of(p, false), few_rows, device.max_smem_per_block);
    if (p.dbias) {
      variant.has_dbias = 1;
      variant.dbias = element_of(p.dbias->dtype);
      variant.dbias_over_rows = p.dbias->shape[2] != p.max_seqlen_q;
    }
    Choice choice = {.variant = variant, .why = "CUDA cores, which support every option"};
    if (few_rows && !p.is_backward) {
      choice.why = "CUDA cores; few rows, so small row tiles that give every multiprocessor work";
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
      choice.add_step({.blocks = row_tiles(kPlainRows) * query_heads});
      choice.add_step({.blocks = key_tiles(keys.block_n) * p.num_sequences * p.num_heads_k * keys.parts});
      choice.add_step({.blocks = row_tiles(queries.block_m) * query_heads * queries.parts});
    }
    if (variant.has_dbias != 0) {
      const std::int64_t matrices = p.dbias->shape[0] * p.dbias->shape[1];
      const SimtBackwardTile& tile = variant.tile(kTerms);
      if (variant.dbias_over_rows == 0) {
        choice.add_step({.blocks = matrices * row_tiles(tile.block_m) * key_tiles(tile.block_n)});
      } else {
        choice.add_step({.blocks = query_heads * key_tiles(tile.block_n)});
        choice.add_step({.blocks = matrices * key_tiles(kPlainThreads)});
      }
    }
    add_captured_step(p, choice);
    add_row_logit_steps(p, choice);
    constexpr double kForwardTflops = 30, kBackwardTflops = 20;
    const std::size_t main = p.is_backward ? 1 : 0;
    choice.seconds = estimated_seconds(p, device,
                                       {.tflops = p.is_backward ? kBackwardTflops : kForwardTflops,
                                        .block_m = variant.forward.block_m,
                                        .blocks = choice.steps[main].blocks,
                                        .blocks_per_multiprocessor = 2,
                                        .num_steps = choice.num_steps}) +
                     captured_seconds(p, device);
  }

  [[nodiscard]] std::vector<KernelSpec> kernels(const Variant& bytes, const Arch& arch) const override {
    const auto variant = bytes.as<SimtVariant>();
    if (variant.is_backward == 0) return {forward_spec(variant, arch)};
    std::vector<KernelSpec> specs = {plain_spec(variant, arch, "simt_backward_prepare"),
                                     gradient_spec(variant, arch, variant.tile(kKeysValues), "simt_backward_keys"),
                                     gradient_spec(variant, arch, variant.tile(kQueries), "simt_backward_queries")};
    specs.front().config.push_back({"kSoleKey", variant.sole_key != 0});
    specs.front().config.push_back({"kFusesScores", false});
    if (variant.has_dbias != 0) {
      const bool over_rows = variant.dbias_over_rows != 0;
      specs.push_back(
          gradient_spec(variant, arch, variant.tile(kTerms), over_rows ? "simt_dterms_over_rows" : "simt_dterms"));
      if (over_rows) specs.push_back(plain_spec(variant, arch, "dterms_reduce"));
      specs.back().config.push_back({"kDbiasElement", enum_constant(variant.dbias)});
    }
    add_captured_spec(variant, arch, specs);
    add_row_logit_specs(variant, arch, specs);
    return specs;
  }

  [[nodiscard]] Workspace workspace(const Problem& p, const Choice& choice) const override {
    Workspace workspace;
    if (!p.is_backward) return workspace;
    const std::int64_t heads = p.q.shape[0] * p.num_heads_q;
    const bool over_rows = choice.variant.as<SimtVariant>().dbias_over_rows != 0;
    workspace.add({"saved rows", heads * p.q.shape[2] * std::int64_t{sizeof(SavedRow)}});
    workspace.add({"sums of dbias", over_rows ? heads * p.max_seqlen_k * std::int64_t{sizeof(float)} : 0});
    add_row_logit_region(p, workspace);
    return workspace;
  }

  void launch(const Launch& launch) const override {
    const Problem& p = launch.problem;
    if (!p.is_backward) {
      ForwardOptionArgs args = {forward_args(p, nullptr), option_args_of(p)};
      set_block_map(args.options, p);
      return launch.run_all(args);
    }
    BackwardOptionArgs args = backward_option_args(backward_args(p, launch.region(0)), p);
    set_block_map(args.options, p);
    args.dterms_sums = launch.region<float>(1);
    set_row_logit_parts(args, launch);
    run_with_captured_step(launch, args);
  }

  [[nodiscard]] std::span<const Tunable> tunables(const Variant& variant) const override {
    static const std::vector<Tunable> kForward =
        tunables_of<SimtForwardTile>(kSimtForwardFields, Path<&SimtVariant::forward>::place());
    static const std::vector<Tunable> kBackward = [] {
      std::vector<Tunable> all = tunables_at(kKeysValues, "keys_");
      const std::vector<Tunable> queries = tunables_at(kQueries, "queries_");
      all.insert(all.end(), queries.begin(), queries.end());
      return all;
    }();
    return variant.as<SimtVariant>().is_backward != 0 ? kBackward : kForward;
  }

 protected:
  /// Refuses a forward pass of ring attention that adds to existing outputs if several blocks share a row. One of these
  /// blocks would read an lse that another block has already updated.
  [[nodiscard]] std::optional<core::Lack> lack_of_its_own(const Problem& p, const DeviceInfo& device) const override {
    if (auto lack = custom_score_lack(p, option::kRing)) return lack;
    if (auto lack = captured_gradients_lack(p)) return lack;
    if (!p.adds_to_outputs() || p.is_backward) return std::nullopt;
    const SimtVariant variant = simt_variant(facts_of(p, false), false, device.max_smem_per_block);
    if (variant.forward.columns.count == 1) return std::nullopt;
    return core::Lack{"v", "head_dim", p.head_dim_v,
                      p.head_dim_v > kSimtMostColumns ? "1 to 256 in a ring" : "1 to 128 in a ring on this GPU"};
  }
};

}  // namespace

std::unique_ptr<const Family> simt_family() {
  return std::make_unique<const SimtFamily>();
}

}  // namespace attend::cuda
