// Adapter that makes a kernel family from each rung of the ladder, the series of tutorial kernels.
#include <fmt/format.h>

#include <utility>

#include "cuda/launch/estimate.hpp"
#include "cuda/launch/families.hpp"
#include "cuda/launch/kernel_args.hpp"
#include "cuda/launch/rung.hpp"
#include "cuda/launch/variant_cache.hpp"
#include "kernels/attention/work.cuh"

namespace attend::cuda {
namespace {

using core::Lack;
using core::Problem;

std::int64_t blocks_of(const Step& step, const Problem& p) {
  const bool has_rows = step.grid == Grid::kRowTiles || step.grid == Grid::kScoreTiles;
  const bool has_keys = step.grid == Grid::kKeyTiles || step.grid == Grid::kScoreTiles;
  const std::int64_t heads = step.grid == Grid::kKeyTiles ? p.num_heads_k : p.num_heads_q;
  return p.num_sequences * heads * (has_rows ? num_tiles(p.max_seqlen_q, step.tile.block_m) : 1) *
         (has_keys ? num_tiles(p.max_seqlen_k, step.tile.block_n) : 1);
}

std::string workspace_text(const Problem& p) {
  return std::to_string(p.num_sequences * p.num_heads_q) + " heads, seqlen_q " + std::to_string(p.max_seqlen_q) +
         ", seqlen_k " + std::to_string(p.max_seqlen_k);
}

class RungFamily final : public Family {
 public:
  explicit RungFamily(const Rung& rung) : Family(rung.name, rung.description), rung_(rung) {
    in_auto = rung.tflops > 0;
    has_backward = rung.backward != nullptr;
    takes = rung.deterministic_backward ? option::kDeterministic : 0;
    for (const DType dtype : rung.dtypes) dtypes.bits |= core::dtype_bit(dtype);
  }

  [[nodiscard]] bool supports(const Arch& arch) const override {
    return rung_.instructions == nullptr || arch.*rung_.instructions;
  }

  [[nodiscard]] Choice choose(const Problem& p, const DeviceInfo& device) const override {
    constexpr std::int64_t kTallTile = 128, kTilesOfMany = 4;  // kTilesOfMany is a number of tiles per multiprocessor
    const bool many_rows = num_tiles(p.max_seqlen_q, kTallTile) * p.num_sequences * p.num_heads_q >=
                           kTilesOfMany * device.num_multiprocessors;
    RungConfig config = {facts_of(p, rung_.folds_scale)};
    config.max_smem_per_block = device.max_smem_per_block;
    config.many_rows = many_rows;
    if (rung_.needs_alignment) config.aligned = 1;
    const char* why = in_auto ? "no options: the ladder's fastest kernel for these types" : "a kernel of the ladder";
    Choice choice = {.variant = config, .why = why};
    lay_out(p, device, choice);
    return choice;
  }

  void lay_out(const Problem& p, const DeviceInfo& device, Choice& choice) const override {
    const std::vector<Step>& steps = steps_of(choice.variant);
    choice.num_steps = 0;
    for (const Step& step : steps) choice.add_step({.blocks = blocks_of(step, p)});
    if (!in_auto) return;
    const Step& main = steps.back();  // the earlier kernels only prepare the input of the last one
    choice.seconds = estimated_seconds(p, device,
                                       {.tflops = rung_.tflops,
                                        .block_m = main.tile.block_m,
                                        .blocks = blocks_of(main, p),
                                        .blocks_per_multiprocessor = rung_.blocks_per_multiprocessor,
                                        .num_steps = steps.size()});
  }

  [[nodiscard]] std::vector<KernelSpec> kernels(const Variant& variant, const Arch& arch) const override {
    std::vector<KernelSpec> specs;
    for (const Step& step : steps_of(variant)) specs.push_back(spec_of(step, variant.as<RungConfig>(), arch));
    return specs;
  }

  [[nodiscard]] Workspace workspace(const Problem& p, const Choice& /*choice*/) const override {
    Workspace workspace;
    workspace.add({"statistics or matrices", static_cast<std::int64_t>(workspace_bytes(p))});
    return workspace;
  }

  void launch(const Launch& launch) const override {
    const Problem& p = launch.problem;
    if (p.is_backward) return launch.run_all(backward_args(p, launch.region(0), rung_.folds_scale));
    ForwardArgs args = forward_args(p, launch.region(0), rung_.folds_scale);
    // A rung whose first kernel has tensor maps launches only this kernel.
    const Step& first = steps_of(launch.choice.variant).front();
    if (!first.takes_maps) return launch.run_all(args);
    launch.run_all(forward_tma_args(p, first.tile.block_m, first.tile.block_n, args));
  }

 protected:
  [[nodiscard]] std::optional<Lack> lack_of_its_own(const Problem& p, const DeviceInfo& /*device*/) const override {
    if (auto lack = head_dim_lack(p, rung_.head_dims, rung_.max_head_dim, rung_.any_head_dim_v)) return lack;
    if (workspace_bytes(p) > rung_.max_workspace) {
      return Lack{"q, k", "matrices of", workspace_text, "a workspace of 32 GiB"};
    }
    return rung_.needs_alignment ? alignment_lack(p) : std::nullopt;
  }

 private:
  [[nodiscard]] std::size_t workspace_bytes(const Problem& p) const {
    return rung_.workspace == nullptr ? 0 : rung_.workspace(p);
  }

  [[nodiscard]] const std::vector<Step>& steps_of(const Variant& variant) const {
    static auto* cache = new VariantCache<std::vector<Step>>();
    return cache->get(this, 0, variant, [&] {
      const auto config = variant.as<RungConfig>();
      return config.is_backward != 0 ? rung_.backward(config) : rung_.forward(config);
    });
  }

  [[nodiscard]] KernelSpec spec_of(const Step& step, const RungConfig& config, const Arch& arch) const {
    const bool is_backward = config.is_backward != 0;
    const std::string function = step.function.empty() ? fmt::format("{}_forward", name) : step.function;
    KernelSpec spec = {.name = function,
                       .source = is_backward && rung_.backward_source != nullptr
                                     ? rung_.backward_source
                                     : fmt::format("ladder/{:02}_{}.cuh", rung_.number, name),
                       .function = function,
                       .args = is_backward       ? BackwardArgs::kTypeName
                               : step.takes_maps ? ForwardTmaArgs::kTypeName
                                                 : ForwardArgs::kTypeName,
                       .config = config_of<RungTile>(config, 0, kRungFields, step.tile),
                       .arch = arch.target,
                       .dynamic_smem_bytes = static_cast<unsigned>(step.tile.smem_bytes),
                       .min_blocks = step.tile.min_blocks,
                       .toolkit_headers = rung_.toolkit_headers};
    spec.config.insert(spec.config.end(), step.constants.begin(), step.constants.end());
    return spec;
  }

  const Rung& rung_;
};

}  // namespace

std::span<const Rung> ladder() {
  static const auto* rungs = [] {
    auto* all = new std::vector<Rung>();  // never destroyed, because launches may continue during process exit
    for (auto table : {simt_rungs, fa2_rungs, mma_rungs, wgmma_rungs}) {
      for (Rung& rung : table()) all->push_back(std::move(rung));
    }
    return all;
  }();
  return *rungs;
}

std::unique_ptr<const Family> rung_family(const Rung& rung) {
  return std::make_unique<const RungFamily>(rung);
}

}  // namespace attend::cuda
