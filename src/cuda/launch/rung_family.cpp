// Families of the rungs of the ladder: one adapter for all of their tables.
#include <algorithm>
#include <iterator>

#include "cuda/launch/estimate.hpp"
#include "cuda/launch/families.hpp"
#include "cuda/launch/kernel_args.hpp"
#include "cuda/launch/rung.hpp"
#include "cuda/launch/variant_cache.hpp"
#include "kernels/common/work.cuh"

namespace attend::cuda {
namespace {

using core::Lack;
using core::Problem;

const char* args_name(StepArgs args) {
  return args == StepArgs::kForward      ? ForwardArgs::kTypeName
         : args == StepArgs::kForwardTma ? ForwardTmaArgs::kTypeName
                                         : BackwardArgs::kTypeName;
}

std::int64_t blocks_of(const Step& step, const Problem& p) {
  const std::int64_t row_tiles = num_tiles(p.max_seqlen_q, step.block_m);
  const std::int64_t key_tiles = num_tiles(p.max_seqlen_k, step.block_n);
  const std::int64_t query_heads = p.num_sequences * p.num_heads_q;
  switch (step.grid) {
    case Grid::kRowTiles:
      return row_tiles * query_heads;
    case Grid::kKeyTiles:
      return key_tiles * p.num_sequences * p.num_heads_k;
    case Grid::kScoreTiles:
      return row_tiles * key_tiles * query_heads;
    case Grid::kQueryHeads:
      return query_heads;
  }
  return 0;
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
    return rung_.instructions.has == nullptr || arch.*rung_.instructions.has;
  }

  [[nodiscard]] Choice choose(const Problem& p, const DeviceInfo& device) const override {
    constexpr std::int64_t kTallTile = 128, kTilesOfMany = 4;  // for each multiprocessor
    RungConfig config = {facts_of(p, rung_.folds_scale), device.max_smem_per_block, 1};
    if (rung_.needs_alignment) config.aligned = 1;
    config.many_rows = num_tiles(p.max_seqlen_q, kTallTile) * p.num_sequences * p.num_heads_q >=
                       kTilesOfMany * device.num_multiprocessors;
    Choice choice;
    choice.variant = config;
    choice.why = in_auto ? "plain attention, the ladder's best for these types" : "a lesson of the ladder";
    lay_out(p, device, choice);
    return choice;
  }

  void lay_out(const Problem& p, const DeviceInfo& device, Choice& choice) const override {
    const std::vector<Step>& steps = steps_of(choice.variant);
    choice.num_steps = 0;
    const Step* main = nullptr;
    for (const Step& step : steps) {
      choice.add_step({.blocks = blocks_of(step, p)});
      if (main == nullptr || step.smem_bytes > main->smem_bytes) main = &step;
    }
    if (!in_auto) return;
    choice.seconds = estimated_seconds(p, device,
                                       {.tflops = rung_.tflops,
                                        .block_m = main->block_m,
                                        .blocks = blocks_of(*main, p),
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
    const std::vector<Step>& steps = steps_of(launch.choice.variant);
    if (p.is_backward) {
      BackwardArgs args = backward_args(p, launch.region(0), rung_.folds_scale);
      for (std::size_t i = 0; i < steps.size(); ++i) launch.run(i, args);
      return;
    }
    ForwardArgs args = forward_args(p, launch.region(0), rung_.folds_scale);
    for (std::size_t i = 0; i < steps.size(); ++i) {
      if (launch.choice.steps[i].blocks == 0) continue;  // no address for a map either
      if (steps[i].args == StepArgs::kForwardTma) {
        ForwardTmaArgs tma_args = forward_tma_args(p, steps[i].block_m, steps[i].block_n, args);
        launch.run(i, tma_args);
      } else {
        launch.run(i, args);
      }
    }
  }

  /// The head_dims of the ladder's cases and those between at which tiles change, both masks and passes, every tile;
  /// and of each, scores that are negated and tensors that are not aligned.
  [[nodiscard]] std::vector<Variant> examples(const Arch& arch) const override {
    std::vector<Variant> variants;
    const auto add = [&](const Facts& facts) {
      for (const int many_rows : {1, 0}) {
        RungConfig config = {facts, arch.max_smem_per_block, many_rows};
        variants.emplace_back(config);
        config.is_backward = 1;
        if (has_backward) variants.emplace_back(config);
      }
    };
    std::vector<int> head_dims = rung_.head_dims.empty() ? std::vector{32, 64, 96, 128} : rung_.head_dims;
    if (!arch.cp_async) head_dims.insert(head_dims.begin(), 16);  // with 64 KB the tallest tiles are of narrow rows
    for (const DType dtype : rung_.dtypes) {
      for (const int head_dim : head_dims) {
        const Facts plain = {.element = element_of(dtype), .head_dim = head_dim, .head_dim_v = head_dim};
        Facts causal = plain;
        causal.mask = MaskKind::kCausal;
        Facts last = causal;
        last.negate_scores = rung_.folds_scale;
        last.aligned = rung_.needs_alignment;
        add(plain);
        if (head_dim % 64 == 0) add(causal);
        if (!(Variant(last) == Variant(causal))) add(last);
      }
    }
    return variants;
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
    const auto bytes = p.is_backward ? rung_.backward_workspace : rung_.forward_workspace;
    return bytes == nullptr ? 0 : bytes(p);
  }

  [[nodiscard]] const std::vector<Step>& steps_of(const Variant& variant) const {
    static auto* cache = new VariantCache<std::vector<Step>>();
    return cache->get(this, 0, variant, [&] {
      const auto config = variant.as<RungConfig>();
      return config.is_backward != 0 ? rung_.backward(config) : rung_.forward(config);
    });
  }

  [[nodiscard]] KernelSpec spec_of(const Step& step, const RungConfig& config, const Arch& arch) const {
    const bool own_source = step.args == StepArgs::kBackward && rung_.backward_source != nullptr;
    KernelSpec spec = {.name = step.function,
                       .source = own_source ? rung_.backward_source : rung_.source,
                       .function = step.function,
                       .args = args_name(step.args),
                       .config = constants_of(config, 0),
                       .arch = arch.target,
                       .dynamic_smem_bytes = step.smem_bytes,
                       .min_blocks = std::max(1, step.min_blocks),
                       .toolkit_headers = rung_.toolkit_headers};
    spec.config.insert(spec.config.end(), {{"kThreads", std::int64_t{step.threads}},
                                           {"kBlockM", std::int64_t{step.block_m}},
                                           {"kBlockN", std::int64_t{step.block_n}},
                                           {"kSmemBytes", std::int64_t{step.smem_bytes}}});
    spec.config.insert(spec.config.end(), step.constants.begin(), step.constants.end());
    return spec;
  }

  const Rung& rung_;
};

}  // namespace

std::span<const Rung> ladder() {
  static const auto* rungs = [] {
    auto* all = new std::vector<Rung>();  // launches may go on while the process ends
    for (auto table : {simt_rungs, fa2_rungs, mma_rungs, wgmma_rungs}) {
      std::vector<Rung> more = table();
      all->insert(all->end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
    }
    return all;
  }();
  return *rungs;
}

std::unique_ptr<const Family> rung_family(const Rung& rung) {
  return std::make_unique<const RungFamily>(rung);
}

}  // namespace attend::cuda
