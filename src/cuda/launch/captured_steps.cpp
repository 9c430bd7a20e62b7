#include "cuda/launch/captured_steps.hpp"

#include "cuda/launch/estimate.hpp"
#include "cuda/launch/row_logit_steps.hpp"
#include "cuda/launch/simt_variant.hpp"
#include "kernels/attention/work.cuh"

namespace attend::cuda {
namespace {

constexpr int kKeys = 64;  // keys per block

/// Returns the tile of the kernel. It uses 43 KB of shared memory, which every GPU has.
SimtBackwardTile tile_of(const Facts& facts) {
  constexpr int kPanel = 64;
  return {.gradient = SimtGradient::kCaptures,
          .head_dim = facts.head_dim,
          .head_dim_v = facts.head_dim_v,
          .block_m = 32,
          .block_n = kKeys,
          .threads = 128,
          .threads_x = 16,
          .min_blocks = 2,
          .resident = 0,
          .panel = kPanel,
          .parts = 1,
          .cols_0 = round_up(facts.head_dim, kPanel),
          .cols_1 = round_up(facts.head_dim_v, kPanel)};
}

/// Returns whether the tensor is contiguous in row-major order.
bool is_dense(const Tensor& t) {
  std::int64_t dense = 1;
  for (std::size_t d = t.shape.size(); d-- > 0; dense *= t.shape[d]) {
    if (t.shape[d] > 1 && t.stride[d] != dense) return false;
  }
  return true;
}

bool has_step(const core::Problem& p) {
  return !p.captured_gradients.empty() && !p.custom_score->gradients.empty();
}

std::int64_t blocks_of(const core::Problem& p) {
  return num_tiles(p.max_seqlen_k, kKeys) * p.num_sequences * p.num_heads_q;
}

}  // namespace

std::optional<core::Lack> captured_gradients_lack(const core::Problem& p) {
  if (p.captured_gradients.empty()) return std::nullopt;
  if (p.deterministic) return core::Lack{nullptr, "captures", "given", "none with deterministic"};
  for (const core::CapturedGradient& g : p.captured_gradients) {
    if (g.gradient.dtype != DType::kF32 || !is_dense(g.gradient)) {
      return core::Lack{"captures", "a gradient", "strided or f64", "contiguous f32 gradients on a GPU"};
    }
  }
  return std::nullopt;
}

void add_captured_spec(const Facts& facts, const Arch& arch, std::vector<KernelSpec>& specs) {
  if (!facts.has(option::kCapturedGradients)) return;
  Facts exact = facts;
  exact.negate_scores = 0;  // this kernel supports a negative scale, so scores are not negated
  const SimtBackwardTile tile = tile_of(facts);
  const SimtGradientKernel kernel = {.tile = tile, .has_lse_rounding = facts.has_lse_rounding()};
  constexpr std::int32_t kTaken = option::kAll | option::kHugeTransform | option::kCustomScore |
                                  option::kCapturedGradients | option::kBlockMap | option::kRing;
  specs.push_back({.name = "simt_captures",
                   .source = "simt/simt_captures.cuh",
                   .function = "simt_captures",
                   .args = BackwardOptionArgs::kTypeName,
                   .config = config_of<SimtGradientKernel>(exact, kTaken, kSimtGradientFields, kernel),
                   .arch = arch.target,
                   .dynamic_smem_bytes = static_cast<unsigned>(tile.smem_bytes()),
                   .min_blocks = tile.min_blocks});
}

void add_captured_step(const core::Problem& p, Choice& choice) {
  if (has_step(p)) choice.add_step({.blocks = blocks_of(p)});
}

double captured_seconds(const core::Problem& p, const DeviceInfo& device) {
  if (!has_step(p)) return 0;
  // TFLOP/s of a full backward pass; this kernel computes two of its five matrix products.
  constexpr double kTflops = 60;
  return estimated_seconds(
      p, device,
      {.tflops = kTflops, .block_m = kKeys, .blocks = blocks_of(p), .blocks_per_multiprocessor = 2, .num_steps = 1});
}

BackwardOptionArgs captured_args(const BackwardOptionArgs& args, const core::Problem& p) {
  BackwardOptionArgs exact = args;
  exact.base.scale = p.scale;
  return exact;
}

void run_with_captured_step(const Launch& launch, BackwardOptionArgs& args) {
  const std::size_t behind = steps_before_row_logit(launch);
  const std::size_t captured = has_step(launch.problem) ? behind - 1 : launch.choice.num_steps;
  BackwardOptionArgs exact = captured_args(args, launch.problem);
  for (std::size_t step = 0; step < launch.choice.num_steps; ++step) launch.run(step, step == captured ? exact : args);
}

}  // namespace attend::cuda
