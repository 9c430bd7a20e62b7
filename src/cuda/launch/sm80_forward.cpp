// The kernel family sm80_forward. It computes float16 and bfloat16 forward passes on the tensor cores of every GPU
// since Ampere, with all options.
#include <algorithm>
#include <optional>
#include <string>

#include "cuda/launch/block_map.hpp"
#include "cuda/launch/estimate.hpp"
#include "cuda/launch/families.hpp"
#include "cuda/launch/kernel_args.hpp"
#include "cuda/launch/sm80_forward_variant.hpp"
#include "kernels/attention/long_sum.cuh"
#include "kernels/attention/work.cuh"

namespace attend::cuda {
namespace {

using core::Problem;

/// Returns the speed of the kernel in TFLOP/s, for the time estimate. Attention without options was measured on an H200
/// with 2048 keys at 64, 128 and 256 columns. Dropout was measured at 64 and 128 columns. All other values are assumed.
double tflops_of(const Sm80ForwardVariant& v) {
  const int widest = v.widest();
  double rate = widest <= 64 ? 330 : widest <= 128 ? 370 : widest <= 192 ? 250 : widest <= 256 ? 330 : 120;
  if (v.has_rules()) rate = widest <= 64 ? 117 : widest <= 128 ? 180 : widest <= 256 ? 125 : 60;
  if (v.copy_bytes < 4) rate *= 0.5;
  const bool is_low = widest <= 128 ? v.tile.row_groups == 1 && v.tile.min_blocks < 4
                                    : widest > 192 && v.tile.warps * v.tile.min_blocks < 8;
  return is_low ? 0.65 * rate : rate;
}

constexpr std::int32_t kTaken = option::kAll | option::kCustomScore | option::kBlockMap;
constexpr std::int64_t kShortSeqlen = 768;  // largest seqlen_q and seqlen_k at which sm80_short_tile() is used
constexpr int kWidestLongSum = 256;         // largest head_dim at which 99 KB of shared memory have room to spill o

class Sm80Forward final : public Family {
 public:
  Sm80Forward() : Family("sm80_forward", "float16 and bfloat16 on tensor cores since Ampere, every option") {
    has_backward = false;
    takes = kTaken | option::kBlockMask;
    dtypes.bits = core::dtype_bit(DType::kF16) | core::dtype_bit(DType::kBF16);
  }

  [[nodiscard]] bool supports(const Arch& arch) const override { return arch.cp_async; }

  [[nodiscard]] Choice choose(const Problem& p, const DeviceInfo& device) const override {
    const Facts facts = facts_of(p, true);
    const int copy_bytes = facts.aligned != 0 ? 16 : is_aligned(p, 4) ? 4 : static_cast<int>(dtype_bytes(p.q.dtype));
    const int smem = device.max_smem_per_block;
    if (puts_sums_aside(facts.element, p.max_seqlen_k)) {
      Choice choice = {.variant = sm80_forward_variant(facts, copy_bytes, sm80_long_tile(facts, smem)),
                       .why = "Ampere's tensor core instructions: very many keys, so sums are split into parts"};
      lay_out(p, device, choice);
      return choice;
    }
    Choice choice = {
        .variant = sm80_forward_variant(facts, copy_bytes, sm80_tall_tile(facts, smem)),
        .why = "Ampere's tensor core instructions: the tallest row tiles that registers and shared memory allow"};
    const auto low_if_short = sm80_short_tile(facts, smem);
    if (low_if_short && std::max(p.max_seqlen_q, p.max_seqlen_k) <= kShortSeqlen) {
      choice = {.variant = sm80_forward_variant(facts, copy_bytes, *low_if_short),
                .why =
                    "Ampere's tensor core instructions: short and causal, so tiles of 64 rows, of which the mask hides "
                    "least"};
    }
    lay_out(p, device, choice);
    Choice other = {.variant = sm80_forward_variant(facts, copy_bytes, sm80_low_tile(facts, smem)),
                    .why = "Ampere's tensor core instructions: few rows, so tiles of 64"};
    lay_out(p, device, other);
    return other.seconds < choice.seconds ? other : choice;
  }

  void lay_out(const Problem& p, const DeviceInfo& device, Choice& choice) const override {
    const auto v = choice.variant.as<Sm80ForwardVariant>();
    const std::int64_t blocks =
        num_tiles(p.max_seqlen_q, v.tile.block_m()) * p.num_sequences * p.num_heads_q * v.tile.column_parts;
    choice.num_steps = 0;
    choice.add_step({.blocks = blocks});
    choice.seconds = estimated_seconds(p, device,
                                       {.tflops = tflops_of(v),
                                        .block_m = v.tile.block_m(),
                                        .blocks = blocks,
                                        .blocks_per_multiprocessor = v.tile.min_blocks,
                                        .num_steps = 1});
  }

  [[nodiscard]] std::vector<KernelSpec> kernels(const Variant& variant, const Arch& arch) const override {
    const auto v = variant.as<Sm80ForwardVariant>();
    return {{.name = name,
             .source = "sm80/sm80_forward.cuh",
             .function = name,
             .args = ForwardOptionArgs::kTypeName,
             .config = config_of<Sm80ForwardVariant>(v, kTaken | option::kPart, kSm80ForwardFields, v),
             .arch = arch.target,
             .dynamic_smem_bytes = static_cast<unsigned>(v.smem_bytes()),
             .min_blocks = v.tile.min_blocks}};
  }

  [[nodiscard]] Workspace workspace(const Problem& /*p*/, const Choice& /*choice*/) const override { return {}; }

  void launch(const Launch& launch) const override {
    const Problem& p = launch.problem;
    ForwardOptionArgs args = {forward_args(p, nullptr, true), option_args_of(p)};
    args.base.scale = made_up_scale(p, true);
    set_block_map(args.options, p);
    // If there is only one row, its stride is arbitrary. But the kernel computes addresses of padding rows with it, and
    // these addresses must be aligned.
    if (p.q.shape[2] == 1) args.base.q_stride.row = 0;
    if (p.k.shape[2] == 1) args.base.k_stride.row = args.base.v_stride.row = 0;
    launch.run(0, args);
  }

  [[nodiscard]] std::span<const Tunable> tunables(const Variant& /*variant*/) const override {
    static const std::vector<Tunable> kAll = tunables_of<Sm80ForwardVariant>(kSm80ForwardFields);
    return kAll;
  }

 protected:
  [[nodiscard]] std::optional<core::Lack> lack_of_its_own(const Problem& p,
                                                          const DeviceInfo& /*device*/) const override {
    if (auto lack = head_dim_lack(p, {}, kSm80LargestHeadDim, true)) return lack;
    if (auto lack = custom_score_lack(p, 0)) return lack;
    const Facts facts = facts_of(p, true);
    const int widest = std::max(facts.head_dim, facts.head_dim_v);
    if (widest > kWidestLongSum && puts_sums_aside(facts.element, p.max_seqlen_k)) {
      return core::Lack{p.head_dim == widest ? "q" : "v", "head_dim", widest, "1 to 256 if there are very many keys"};
    }
    return std::nullopt;
  }
};

}  // namespace

std::unique_ptr<const Family> sm80_forward_family() {
  return std::make_unique<const Sm80Forward>();
}

}  // namespace attend::cuda
