// The kernel family sm90_backward_panels. It computes float16 and bfloat16 gradients on Hopper's tensor cores for head
// dimensions of 257 to 512. The scores go through memory.
#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "cuda/driver/device.hpp"
#include "cuda/launch/estimate.hpp"
#include "cuda/launch/families.hpp"
#include "cuda/launch/kernel_args.hpp"
#include "cuda/launch/row_logit_steps.hpp"
#include "cuda/launch/sm90_backward_panels_plan.hpp"
#include "cuda/launch/tensor_maps.hpp"
#include "kernels/sm90/sm90_backward_panels_args.cuh"
#include "kernels/sm90/sm90_backward_units.cuh"

namespace attend::cuda {
namespace {

using core::Problem;

constexpr int kMostHeadDim = 512;
constexpr int kMostHeadDimOfOthers = 256;  // sm90_backward supports head dimensions up to this one
// The difference of two positions must fit in an int.
constexpr std::int64_t kMostLength = (std::int64_t{1} << 30) - 1024;
constexpr std::int64_t kMostBlocks = (std::int64_t{1} << 31) - 1;

std::string rows_text(const Problem& p) {
  return fmt::format("{} sequences, {} heads, max_seqlen_q {}", p.num_sequences, p.num_heads_q, p.max_seqlen_q);
}

enum Step : std::size_t { kPrepare, kScores, kProducts, kSteps };

class Sm90BackwardPanels final : public Family {
 public:
  Sm90BackwardPanels()
      : Family("sm90_backward_panels", "float16 and bfloat16 gradients on Hopper's tensor cores, head_dim 257 to 512") {
    has_forward = false;
    takes = kRowLogit | option::kDeterministic | option::kWindow | option::kVarlen;
    dtypes.bits = core::dtype_bit(DType::kF16) | core::dtype_bit(DType::kBF16);
  }

  [[nodiscard]] bool supports(const Arch& arch) const override { return arch.wgmma; }

  [[nodiscard]] Choice choose(const Problem& p, const DeviceInfo& device) const override {
    Sm90BackwardPanelsVariant v = {facts_of(p, false)};
    v.aligned = 1;  // lack_of_its_own() refuses unaligned tensors
    Choice choice = {.variant = v, .why = "Hopper's tensor cores: scores in memory, for head dimensions above 256"};
    lay_out(p, device, choice);
    return choice;
  }

  void lay_out(const Problem& p, const DeviceInfo& device, Choice& choice) const override {
    const auto plan = Sm90BackwardPanelsPlan::of(p, choice.variant.as<Sm90BackwardPanelsVariant>());
    const std::int64_t multiprocessors = device.num_multiprocessors;
    choice.num_steps = 0;
    choice.add_step({.blocks = plan.row_blocks});
    choice.add_step({.blocks = std::min(plan.score_tiles, multiprocessors)});
    choice.add_step({.blocks = std::min(plan.product_tiles, multiprocessors)});
    add_row_logit_steps(p, choice);
    constexpr double kTflops = 300;
    choice.seconds = estimated_seconds(p, device,
                                       {.tflops = kTflops,
                                        .block_m = kPanelsRows,
                                        .blocks = plan.score_tiles,
                                        .blocks_per_multiprocessor = 1,
                                        .num_steps = choice.num_steps});
  }

  [[nodiscard]] std::vector<KernelSpec> kernels(const Variant& variant, const Arch& arch) const override {
    const auto v = variant.as<Sm90BackwardPanelsVariant>();
    Sm90BackwardPanelsVariant before = v;
    before.mask = MaskKind::kFull;  // the first kernel does not read the mask
    std::vector<KernelSpec> specs = {
        spec_of(before, arch, "sm90_backward_panels_prepare", kPanelsPrepareThreads, 0),
        spec_of(v, arch, "sm90_backward_panels_scores", kPanelsThreads, kPanelsSmemBytes),
        spec_of(v, arch, "sm90_backward_panels_products", kPanelsThreads, kPanelsSmemBytes)};
    add_row_logit_specs(v, arch, specs);
    return specs;
  }

  [[nodiscard]] Workspace workspace(const Problem& p, const Choice& choice) const override {
    const auto plan = Sm90BackwardPanelsPlan::of(p, choice.variant.as<Sm90BackwardPanelsVariant>());
    Workspace workspace;
    workspace.add({"lse of rows", plan.stats_bytes});
    workspace.add({"delta of rows", plan.stats_bytes});
    workspace.add({"p of a panel", plan.matrix_bytes});
    workspace.add({"ds of a panel", plan.matrix_bytes});
    workspace.add({"sums of dq", plan.dq_bytes});
    add_row_logit_region(p, workspace);
    return workspace;
  }

  void launch(const Launch& launch) const override {
    const Problem& p = launch.problem;
    const auto plan = Sm90BackwardPanelsPlan::of(p, launch.choice.variant.as<Sm90BackwardPanelsVariant>());
    BackwardOptionArgs all = backward_option_args(backward_args(p, launch.region(2)), p);
    set_row_logit_parts(all, launch);
    Sm90BackwardPanelsArgs args = args_of(launch, plan, all);
    launch.run(kPrepare, args);
    for (std::int64_t unit = 0; unit < plan.units; unit += plan.panel_units) {
      args.first_unit = static_cast<uint32>(unit);
      args.num_units = static_cast<uint32>(std::min(plan.panel_units, plan.units - unit));
      std::int64_t key = 0;
      do {  // without keys, dq must be set to 0
        args.first_key = static_cast<int>(key);
        launch.run(kScores, args);
        launch.run(kProducts, args);
        key += plan.panel_keys;
      } while (key < p.max_seqlen_k);
    }
    for (std::size_t i = kSteps; i < launch.choice.num_steps; ++i) launch.run(i, all);
  }

 protected:
  [[nodiscard]] std::optional<core::Lack> lack_of_its_own(const Problem& p,
                                                          const DeviceInfo& /*device*/) const override {
    if (auto lack = head_dim_lack(p, {}, kMostHeadDim, true)) return lack;
    if (std::max(p.head_dim, p.head_dim_v) <= kMostHeadDimOfOthers) {
      return core::Lack{"q, v", "the larger head_dim", std::max(p.head_dim, p.head_dim_v),
                        core::Range{kMostHeadDimOfOthers + 1, kMostHeadDim}};
    }
    if (auto lack = length_lack(p, kMostLength)) return lack;
    if (p.num_heads_q == 0) return core::Lack{"q", "heads", p.num_heads_q, "1 and more"};
    const Sm90BackwardPanelsVariant v = {facts_of(p, false)};
    // p and ds of kPanelsKeys keys must fit into a panel. This bound also keeps the sizes of the plan within 64 bits.
    const std::int64_t group = p.num_heads_k == 0 ? 1 : p.num_heads_q / p.num_heads_k;
    const std::int64_t rows = group * panels_padded(p.max_seqlen_q, kPanelsRows);
    constexpr std::int64_t kBytesOfRow = 2 * sizeof(Bits16) * kPanelsKeys;
    const std::int64_t most = (std::int64_t{v.panel_kib} << 10) / kBytesOfRow;
    if (rows > most) {
      return core::Lack{"q", "rows of the heads that share a key head, padded to a multiple of 128 each:", rows,
                        core::Range{1, most}};
    }
    const auto plan = Sm90BackwardPanelsPlan::of(p, v);
    if (plan.row_blocks > kMostBlocks) {
      return core::Lack{"q", "tiles of 128 rows of all sequences and heads:", rows_text, "2^31 - 1"};
    }
    if (plan.stats_rows > kMostLength) {
      return core::Lack{"q", "rows of all sequences, padded to tiles of 128:", plan.stats_rows,
                        core::Range{0, kMostLength}};
    }
    return tensor_map_lack(p);
  }

 private:
  /// Returns the kernel arguments of all panels. The caller sets the panel.
  [[nodiscard]] static Sm90BackwardPanelsArgs args_of(const Launch& launch, const Sm90BackwardPanelsPlan& plan,
                                                      const BackwardOptionArgs& all) {
    const Problem& p = launch.problem;
    const auto* const memory = launch.region<std::byte>(2);
    const auto matrices = [&](std::size_t region) {
      const std::int64_t rows = plan.matrix_rows, keys = plan.panel_keys, count = plan.panel_units * plan.group;
      const Tensor tensor = {.data = launch.region(region),
                             .dtype = p.q.dtype,
                             .shape = {1, count, rows, keys},
                             .stride = {count * rows * keys, rows * keys, keys, 1}};
      return row_map(tensor, kPanelsBoxRows, memory);
    };
    Sm90BackwardPanelsArgs args = {.q_map = row_map(p.q, kPanelsBoxRows, memory),
                                   .k_map = row_map(p.k, kPanelsBoxRows, memory),
                                   .v_map = row_map(p.v, kPanelsBoxRows, memory),
                                   .dout_map = row_map(p.dout, kPanelsBoxRows, memory),
                                   .p_map = matrices(2),
                                   .ds_map = matrices(3),
                                   .base = all.base,
                                   .options = all.options,
                                   .lse_log2 = launch.region<float>(0),
                                   .delta = launch.region<float>(1),
                                   .p = launch.region(2),
                                   .ds = launch.region(3),
                                   .dq_sums = launch.region<float>(4),
                                   .stats_rows = plan.stats_rows,
                                   .matrix_rows = plan.matrix_rows,
                                   .panel_keys = static_cast<int>(plan.panel_keys),
                                   .first_key = 0,
                                   .first_unit = 0,
                                   .num_units = 0,
                                   .scale_log2 = sm90_backward_folded_scale(p),
                                   .padding = 0};
    args.base.gradient_scale *= sm90_backward_unit(sm90_backward_units(element_of(p.q.dtype)).ds_bits);
    return args;
  }

  [[nodiscard]] KernelSpec spec_of(const Sm90BackwardPanelsVariant& v, const Arch& arch, const char* function,
                                   int threads, int smem_bytes) const {
    KernelSpec spec = {.name = function,
                       .source = std::string("sm90/") + function + ".cuh",
                       .function = function,
                       .args = Sm90BackwardPanelsArgs::kTypeName,
                       .config = config_of<Sm90BackwardPanelsVariant>(v, option::kVarlen, kSm90BackwardPanelsFields, v),
                       .arch = arch.target,
                       .dynamic_smem_bytes = static_cast<unsigned>(smem_bytes)};
    const Constant of_tile[] = {{"kBlockM", kPanelsRows},
                                {"kBlockN", kPanelsScoreKeys},
                                {"kStages", kPanelsStages},
                                {"kThreads", threads},
                                {"kSmemBytes", smem_bytes}};
    spec.config.insert(spec.config.end(), std::begin(of_tile), std::end(of_tile));
    return spec;
  }
};

}  // namespace

std::unique_ptr<const Family> sm90_backward_panels_family() {
  return std::make_unique<const Sm90BackwardPanels>();
}

}  // namespace attend::cuda
