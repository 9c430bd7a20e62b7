// The kernel family sm90_backward. It computes float16 and bfloat16 gradients with Hopper's warpgroup instructions.
#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <string>

#include "core/score_options.hpp"
#include "cuda/driver/device.hpp"
#include "cuda/launch/captured_steps.hpp"
#include "cuda/launch/estimate.hpp"
#include "cuda/launch/families.hpp"
#include "cuda/launch/kernel_args.hpp"
#include "cuda/launch/row_logit_steps.hpp"
#include "cuda/launch/sm90_backward_plan.hpp"
#include "cuda/launch/tensor_maps.hpp"
#include "kernels/attention/score_transform.cuh"
#include "kernels/attention/work.cuh"
#include "kernels/sm90/sm90_backward_args.cuh"
#include "kernels/sm90/sm90_backward_layout.cuh"
#include "kernels/sm90/sm90_backward_schedule.cuh"
#include "kernels/sm90/sm90_backward_units.cuh"
#include "kernels/sm90/sm90_backward_workspace.cuh"

namespace attend::cuda {
namespace {

using core::Problem;

constexpr int kMostHeadDim = 256;
// The kernels for larger head_dims can store gradients, but cannot add to existing ones.
constexpr int kMostHeadDimInRing = 128;
constexpr int kMostHeadDimWithBias = 192;
constexpr const char* kTransformName = core::name_of(&ScoreModTraits::transforms);

std::string none_with_transform(const Problem&) {
  return std::string("none with ") + kTransformName;
}

constexpr std::int32_t kRulesOfWide = option::kTransform | option::kBias;
// The difference of two positions must fit in an int.
constexpr std::int64_t kMostLength = (std::int64_t{1} << 30) - 1024;
constexpr std::int64_t kMostBlocks = (std::int64_t{1} << 31) - 1;  // the kernels count blocks in 32 bits

std::string tiles_text(const Problem& p) {
  return std::to_string(p.num_sequences) + " sequences, " + std::to_string(p.num_heads_q) + " heads, max_seqlen_q " +
         std::to_string(p.max_seqlen_q) + ", max_seqlen_k " + std::to_string(p.max_seqlen_k);
}

std::string dropout_text(const Problem& p) {
  return fmt::format("{}", p.dropout_p);
}
std::string window_text(const Problem& p) {
  return std::to_string(p.window_right);
}

class Sm90Backward final : public Family {
 public:
  Sm90Backward() : Family("sm90_backward", "float16 and bfloat16 gradients on Hopper's tensor cores, head_dim to 256") {
    has_forward = false;
    takes = kRowLogit | option::kDeterministic | option::kWindow | option::kVarlen | option::kAlibi |
            // This family checks the range of the tanh cap in rules_lack().
            option::kTransform | option::kHugeTransform | option::kBias | option::kDropout | option::kPhiloxState |
            option::kCustomScore | option::kCapturedGradients | option::kBoolMask | option::kBlockMask | option::kRing;
    dtypes.bits = core::dtype_bit(DType::kF16) | core::dtype_bit(DType::kBF16);
  }

  [[nodiscard]] bool supports(const Arch& arch) const override { return arch.wgmma; }

  [[nodiscard]] Choice choose(const Problem& p, const DeviceInfo& device) const override {
    Sm90BackwardVariant v = {sm90_backward_facts(p, false)};
    v.aligned = 1;  // lack_of_its_own() refuses unaligned tensors
    v.owns_heads = sm90_backward_owns_heads(p, device);
    v.adds_up = pays_to_add_up(p, device);
    v.is_persistent = v.adds_up == 0 && v.owns_heads == 0 && sm90_backward_prefers_persistent(p, device);
    // Kernels with wide tiles are always deterministic, because one kernel computes dk and dv, and another kernel
    // computes dq. Kernels whose blocks own heads are always deterministic too.
    v.is_deterministic = p.deterministic && !v.tile().is_wide && v.owns_heads == 0;
    // At 64 columns without a mask, the compiler runs out of registers if dropout or a transform is active. With a
    // window of unlimited size it does not, and the results are the same.
    constexpr std::int32_t kNoRule = option::kRing | option::kPhiloxState;
    const std::int32_t rules = v.loop_options() & ~kNoRule;
    if (v.mask == MaskKind::kFull && (rules == option::kDropout || rules == option::kTransform) &&
        v.tile().block_n == 192) {
      v.mask = MaskKind::kWindow;
    }
    v.dbias_blocks = sm90_backward_dbias_blocks(p);
    if (p.dbias) v.dbias = element_of(p.dbias->dtype);
    Choice choice = {.variant = v, .why = why(v)};
    lay_out(p, device, choice);
    return choice;
  }

  void lay_out(const Problem& p, const DeviceInfo& device, Choice& choice) const override {
    const auto v = choice.variant.as<Sm90BackwardVariant>();
    const Sm90BackwardPlan plan = Sm90BackwardPlan::of(p, v, device.num_multiprocessors);
    choice.num_steps = 0;
    choice.seconds = 0;
    if (v.lists_from_mask != 0) {
      const Sm90MaskSteps mask_steps(p, v.mask_lists());
      mask_steps.add_steps(choice);
      choice.seconds = mask_steps.seconds(device);
    }
    choice.add_step({.blocks = plan.row_blocks});
    choice.add_step({.blocks = plan.blocks});
    if (v.owns_heads == 0) {
      choice.add_step(
          {.blocks = plan.last_blocks, .cluster = static_cast<unsigned>(std::max<std::int32_t>(1, v.dbias_blocks))});
    }
    if (v.adds_up != 0) choice.add_step({.blocks = plan.key_tiles});
    add_row_logit_steps(p, choice);
    constexpr double kTflops = 550, kDeterministicTflops = 480, kWideTflops = 450, kWideRulesTflops = 340,
                     kTransformTflops = 430, kDbiasTflops = 300;
    choice.seconds +=
        estimated_seconds(p, device,
                          {.tflops = v.dbias_blocks > 0                         ? kDbiasTflops
                                     : plan.tile.is_wide && v.has(kRulesOfWide) ? kWideRulesTflops
                                     : v.has(option::kTransform)                ? kTransformTflops
                                     : plan.tile.is_wide                        ? kWideTflops
                                     : v.is_deterministic != 0                  ? kDeterministicTflops
                                                                                : kTflops,
                           .block_m = plan.tile.block_n,
                           .blocks = num_tiles(p.max_seqlen_k, plan.tile.block_n) * p.num_heads_k * p.num_sequences,
                           .blocks_per_multiprocessor = 1,
                           .num_steps = choice.num_steps});
  }

  [[nodiscard]] std::vector<KernelSpec> kernels(const Variant& variant, const Arch& arch) const override {
    const auto v = variant.as<Sm90BackwardVariant>();
    // The kernels before and after the main kernels read few of the compile-time parameters. The other parameters are
    // reset here, so that more variants share these kernels.
    Sm90BackwardVariant before = v, after = v, after_keys = v;
    for (Sm90BackwardVariant* other : {&before, &after, &after_keys}) other->mask = MaskKind::kFull;
    const bool sums_rows = v.has(option::kBias) || v.custom_may_be_huge != 0;
    if (v.sole_key != 0 || sums_rows) before.mask = v.mask;
    Sm90BackwardVariant keys = v;
    for (Sm90BackwardVariant* other : {&before, &keys}) {
      other->dbias_blocks = 0;
      other->dbias = ElementType::kBF16;
    }
    for (Sm90BackwardVariant* other : {&after, &after_keys}) other->forget_custom_score();
    if (!v.tile().is_wide && v.custom_may_be_huge == 0) before.forget_custom_score();
    before.options &= option::kVarlen | option::kDropout | option::kCustomScore | kRulesOfWide |
                      (v.sole_key != 0 ? option::kPhiloxState : 0) |
                      (v.custom_may_be_huge != 0 ? option::kBlockMask : 0);
    if (!v.has(option::kBias)) before.bias = ElementType::kBF16;
    before.adds_up = 0;
    after.options &= option::kVarlen | option::kAddsToOutputs;
    after.adds_up = after.is_deterministic = 0;
    after.is_persistent = 0;  // but the kernel before the main kernel resets the counters of persistent blocks
    after_keys.options &= option::kDropout | option::kAddsToOutputs;
    std::vector<KernelSpec> specs;
    if (v.lists_from_mask != 0) v.mask_lists().add_specs(arch, specs);
    specs.push_back(spec_of(before, arch, "sm90_backward_prepare", kBackwardPrepareThreads, 0));
    specs.back().config.push_back({"kSoleKey", v.sole_key != 0});
    specs.back().config.push_back({"kFusesScores", true});
    if (v.tile().is_wide) {
      specs.push_back(spec_of(keys, arch, "sm90_backward_wide_keys", v.tile().threads, v.tile().smem_bytes));
      specs.push_back(spec_of(v, arch, "sm90_backward_wide_queries", v.tile().threads, v.tile().dq_smem_bytes));
      add_row_logit_specs(v, arch, specs);
      return specs;
    }
    specs.push_back(spec_of(v, arch, "sm90_backward", v.tile().threads, v.tile().smem_bytes));
    if (v.owns_heads == 0) specs.push_back(spec_of(after, arch, "sm90_backward_finish", kBackwardFinishThreads, 0));
    if (v.adds_up != 0) {
      specs.push_back(spec_of(after_keys, arch, "sm90_backward_finish_keys", kBackwardFinishThreads, 0));
    }
    add_row_logit_specs(v, arch, specs);
    return specs;
  }

  [[nodiscard]] std::span<const Tunable> tunables(const Variant& variant) const override {
    const auto v = variant.as<Sm90BackwardVariant>();
    if (v.tile().is_wide) return {};
    static const std::vector<Tunable> kAll = tunables_of<Sm90BackwardVariant>(kSm90BackwardFields);
    // owns_heads is the last tunable member. It can be changed only if choose() has set it. In this case it is the only
    // tunable member: the others would change the order of the additions to dq, which is fixed. is_persistent changes
    // nothing if blocks with more columns are persistent anyway.
    const std::span<const Tunable> all = kAll;
    if (v.owns_heads != 0) return all.last(1);
    return all.first(all.size() - (v.is_narrow() ? 1 : 2));
  }

  [[nodiscard]] Workspace workspace(const Problem& p, const Choice& choice) const override {
    const auto v = choice.variant.as<Sm90BackwardVariant>();
    const Sm90BackwardPlan plan = Sm90BackwardPlan::of(p, v, choice.steps[v.steps_before() + 1].blocks);
    Workspace workspace;
    workspace.add({"statistics, dq's sums, partial sums, counters", plan.workspace.bytes});
    workspace.add({.name = "sums of dk and dv",
                   .bytes = plan.key_sums * static_cast<std::int64_t>(sizeof(float)),
                   .zeroed = true});
    workspace.add({.name = "whether rows are coarse",
                   .bytes = v.custom_may_be_huge != 0 ? std::int64_t{sizeof(uint32)} : 0,
                   .zeroed = true});
    workspace.add(
        {.name = "tiles of the mask", .bytes = v.lists_from_mask != 0 ? Sm90MaskSteps(p, v.mask_lists()).bytes() : 0});
    add_row_logit_region(p, workspace);
    return workspace;
  }

  void launch(const Launch& launch) const override {
    const Problem& p = launch.problem;
    const auto v = launch.choice.variant.as<Sm90BackwardVariant>();
    const std::size_t first_step = v.steps_before();
    const Sm90BackwardPlan plan = Sm90BackwardPlan::of(p, v, launch.choice.steps[first_step + 1].blocks);
    const Sm90BackwardWorkspace& w = plan.workspace;
    auto* const memory = launch.region<std::byte>(0);
    const auto at = [memory]<class T>(std::int64_t offset, T*) { return reinterpret_cast<T*>(memory + offset); };
    constexpr float* kFloats = nullptr;
    constexpr uint32* kCounts = nullptr;
    const bool is_full = v.mask == MaskKind::kFull && !p.varlen && !v.has(option::kBlockMask);
    BackwardOptionArgs all = backward_option_args(backward_args(p, memory), p);
    set_row_logit_parts(all, launch);
    Sm90BackwardArgs args = {.q_map = row_map(p.q, kBackwardRows, memory),
                             .dout_map = row_map(p.dout, kBackwardRows, memory),
                             .k_map = row_map(p.k, plan.tile.block_n, memory),
                             .v_map = row_map(p.v, plan.tile.block_n, memory),
                             .terms_map = p.bias ? row_map(stored_bias(p), kBackwardRows, memory) : TensorMapArg{},
                             .base = all.base,
                             .options = all.options,
                             .lse_log2 = at(w.lse_log2, kFloats),
                             .delta = at(w.delta, kFloats),
                             .log2_sums = at(w.log2_sums, kFloats),
                             .has_coarse_rows = launch.region<uint32>(2),
                             .dq_sums = at(w.dq_sums, kFloats),
                             .dq_turns = at(w.dq_turns, kCounts),
                             .partial_sums = at(w.partial_sums, kFloats),
                             .partial_ready = at(w.partial_ready, kCounts),
                             .next_item = at(w.next_item, kCounts),
                             .dterms = all.dterms,
                             .dterms_stride = all.dterms_stride,
                             .key_sums = launch.region<float>(1),
                             .captured_gradients = {},
                             .stats_rows = plan.rows,
                             .key_blocks = static_cast<uint32>(num_tiles(p.max_seqlen_k, plan.tile.block_n)),
                             .section_heads = section_of(p, plan, v, is_full),
                             .num_blocks = plan.tile.is_persistent ? static_cast<uint32>(plan.blocks) : 0,
                             .scale_log2 = sm90_backward_folded_scale(p),
                             .captured_scale = sm90_backward_unit(sm90_backward_units(v.element).ds_bits),
                             .transform = {}};
    if (p.transforms_scores()) args.transform = ReciprocalTransform::of(args.scale_log2, p.transform_cap);
    args.base.scale = made_up_scale(p, false);
    args.base.gradient_scale *= sm90_backward_unit(sm90_backward_units(v.element).ds_bits);
    if (p.dropout_p > 0) {  // the kernels compute ds without the dropout scale
      args.base.gradient_scale *= args.options.dropout_scale;
      args.captured_scale *= args.options.dropout_scale;
    }
    std::copy(std::begin(all.captured_gradients), std::end(all.captured_gradients),
              std::begin(args.captured_gradients));
    const Sm90MaskListArgs lists = v.mask_lists().args(launch, launch.region<std::byte>(3));
    args.options.block_mask = lists.by_keys;
    const std::size_t own_steps = steps_before_row_logit(launch);
    for (std::size_t i = first_step; i < own_steps; ++i) {
      // Index of the wide kernel whose blocks own query rows, counted from the first main kernel.
      constexpr std::size_t kQueries = 2;
      if (plan.tile.is_wide && i == first_step + kQueries) args.options.block_mask = lists.by_rows;
      launch.run(i, args);
    }
    for (std::size_t i = own_steps; i < launch.choice.num_steps; ++i) launch.run(i, all);
  }

 protected:
  [[nodiscard]] std::optional<core::Lack> lack_of_its_own(const Problem& p,
                                                          const DeviceInfo& /*device*/) const override {
    if (auto lack = head_dim_lack(p, {}, kMostHeadDim, true)) return lack;
    if (auto lack = length_lack(p, kMostLength)) return lack;
    if (auto lack = part_lack(p)) return lack;
    if (auto lack = custom_score_lack(p, option::kRing | kRulesOfWide | option::kAlibi)) return lack;
    const bool may_be_huge = p.custom_score != nullptr && p.custom_score->may_be_huge;
    if (may_be_huge && sm90_backward_tile_of(p).is_wide) {
      return core::Lack{nullptr, "score function", "given",
                        "with a slope other than 1 or a head_dim above 128 no terms that are elements of a capture or "
                        "constants of 1024 or more"};
    }
    if (auto lack = captured_lack(p)) return lack;
    for (const auto& [tensor, head_dim] : {std::pair{"q", p.head_dim}, {"v", p.head_dim_v}}) {
      if (!p.adds_to_outputs() || (head_dim % 2 == 0 && head_dim <= kMostHeadDimInRing)) continue;
      return core::Lack{tensor, "head_dim", head_dim, "even values up to 128 in a ring"};
    }
    if (auto lack = rules_lack(p)) return lack;
    const Sm90BackwardTile tile = sm90_backward_tile_of(p);
    if (p.alibi_slopes && p.dropout_p > 0 && tile.is_persistent) {
      return core::Lack{nullptr, "dropout_p with alibi_slopes", dropout_text, "0 if the larger head_dim is 65 to 128"};
    }
    if (p.alibi_slopes && !(p.window_right == 0 || (p.window_left < 0 && p.window_right < 0))) {
      return core::Lack{nullptr, "window_right with alibi_slopes", window_text, "0, or no window"};
    }
    if (auto lack = mask_lack(p)) return lack;
    if (auto lack = dbias_lack(p)) return lack;
    const std::int64_t blocks = std::max(sm90_backward_items(tile, p.max_seqlen_k, p.num_heads_q, p.num_sequences),
                                         sm90_backward_row_blocks(p.max_seqlen_q, p.num_heads_q, p.num_sequences));
    if (blocks > kMostBlocks || (p.varlen && p.q.shape[2] + kBackwardRows * p.num_sequences > kMostLength)) {
      return core::Lack{"q, k", "tiles of all sequences and heads:", tiles_text, "2^31 - 1"};
    }
    return tensor_map_lack(p);
  }

 private:
  [[nodiscard]] static const char* why(const Sm90BackwardVariant& v) {
    if (v.owns_heads != 0)
      return "Hopper's tensor cores: one block for all keys of a head, so that its rows stay in the L2 cache";
    if (v.is_persistent != 0)
      return "Hopper's tensor cores: few heads, so persistent blocks of 128 keys that share the last items";
    if (v.adds_up != 0)
      return "Hopper's tensor cores: dk and dv of a group are summed in memory, which helps the L2 cache";
    return "Hopper's tensor cores: the largest tiles that registers allow";
  }

  /// Refuses gradients of captures if the tile is wide, because the wide kernels do not compute them. The other kernels
  /// compute these gradients as sums of ds. At that point they no longer have the scores.
  [[nodiscard]] static std::optional<core::Lack> captured_lack(const Problem& p) {
    if (p.captured_gradients.empty()) return std::nullopt;
    if (sm90_backward_tile_of(p).is_wide) {
      return core::Lack{nullptr, "captures", "given", "none with a slope other than 1 or a head_dim above 128"};
    }
    return captured_gradients_lack(p);
  }

  /// Refuses options that are unsupported together with a boolean mask or a block mask.
  [[nodiscard]] static std::optional<core::Lack> mask_lack(const Problem& p) {
    if (p.block_mask == nullptr && !p.mask) return std::nullopt;
    const char* const name = p.mask ? "mask" : "block_mask";
    if (p.bias || p.alibi_slopes) return core::Lack{nullptr, name, "given", "none with a bias or alibi_slopes"};
    if (!p.mask) return std::nullopt;
    const Sm90BackwardTile tile = sm90_backward_tile_of(p);
    return Sm90MaskSteps(p, sm90_backward_mask_lists(tile, p.deterministic && !tile.is_wide)).lack();
  }

  /// Refuses unsupported values of a transform or a bias, and options that are unsupported together with a transform or
  /// a bias.
  [[nodiscard]] static std::optional<core::Lack> rules_lack(const Problem& p) {
    if (!p.transforms_scores() && !p.bias) return std::nullopt;
    const char* const rule = p.bias ? "bias" : kTransformName;
    if (p.alibi_slopes) return core::Lack{nullptr, rule, "given", "none with alibi_slopes"};
    if (p.adds_to_outputs()) return core::Lack{nullptr, rule, "given", "none in a ring"};
    if (p.transforms_scores() &&
        (p.transform_cap > kLargestCapByReciprocal || p.transform_cap < kSmallestCapByReciprocal)) {
      return core::Lack{nullptr, kTransformName, p.transform_cap, "1e-12 to 256"};
    }
    if (!p.bias) return std::nullopt;
    if (p.transforms_scores()) return core::Lack{nullptr, rule, "given", none_with_transform};
    if (p.bias->dtype != DType::kF16 && p.bias->dtype != DType::kBF16) {
      return core::Lack{"bias", "dtype", core::DTypes{core::dtype_bit(p.bias->dtype)}, "float16, bfloat16"};
    }
    for (const auto& [tensor, head_dim] : {std::pair{"q", p.head_dim}, {"v", p.head_dim_v}}) {
      if (head_dim > kMostHeadDimWithBias) return core::Lack{tensor, "head_dim", head_dim, "at most 192 with a bias"};
    }
    return bias_map_lack(p);
  }

  /// Refuses unsupported forms of dbias. The kernels store dbias in tiles. If dbias is a sum over sequences, the blocks
  /// of a cluster add their tiles.
  [[nodiscard]] static std::optional<core::Lack> dbias_lack(const Problem& p) {
    if (!p.dbias) return std::nullopt;
    const std::int64_t batch = p.dbias->shape[0], heads = p.dbias->shape[1];
    if (p.dbias->dtype != DType::kF16 && p.dbias->dtype != DType::kBF16) {
      return core::Lack{"dbias", "dtype", core::DTypes{core::dtype_bit(p.dbias->dtype)}, "float16, bfloat16"};
    }
    if (heads != p.num_heads_q) return core::Lack{"dbias", "heads", heads, "those of q"};
    // If there are no query rows or no batch entries, no kernel runs. Then nothing would write dbias.
    if (p.dbias->shape[2] != p.max_seqlen_q) return core::Lack{"dbias", "rows", p.dbias->shape[2], "those of q"};
    if (batch > p.num_sequences) return core::Lack{"dbias", "batch", batch, "that of q if q has no entries"};
    if (batch != p.num_sequences &&
        (p.num_sequences > kBackwardMostDtermsBlocks || sm90_backward_tile_of(p).dq_smem_bytes > kBackwardMostSmem)) {
      return core::Lack{"dbias", "batch", batch, "that of q if it is above 8, or above 5 with more than 128 columns"};
    }
    return dbias_map_lack(p);
  }

  /// Returns whether it is faster to add the dk and dv of the query heads of a group in memory. Without these
  /// additions, one block processes a key block for all query heads of the group. The key blocks take different times,
  /// so after a while the blocks work on different query heads. Data that one block has read has then left the L2 cache
  /// when another block needs it. For example, take batch 2, 32 query heads, 4 key heads, 8192 rows and keys, head_dim
  /// 128 and a causal mask. The kernel then reads 8.5 GB from memory, compared with 1.5 GB if each query head has its
  /// own key head. The effect grows with the size of the group. The cost of the additions is relatively lower if each
  /// key block sees more row tiles. Measured: docs/hopper_backward.md.
  [[nodiscard]] static bool pays_to_add_up(const Problem& p, const DeviceInfo& device) {
    if (sm90_backward_tile_of(p).is_wide) return false;
    constexpr std::int64_t kLargeGroup = 8, kTilesOfLarge = 16, kSmallGroup = 4, kTilesOfSmall = 64;
    const auto [left, right] = p.own_window();
    const bool is_windowed = left >= 0 || right > 0;
    if (p.num_heads_k == 0 || p.deterministic || p.varlen || is_windowed) return false;
    const std::int64_t group = p.num_heads_q / p.num_heads_k;
    const std::int64_t tiles = num_tiles(p.max_seqlen_q, kBackwardRows) / (right == 0 ? 2 : 1);
    // If the condition below holds, the key blocks of all key heads occupy at most half of the GPU. With additions in
    // memory, every query head has separate key blocks, which occupy more of the GPU. With batch 1, 32 query heads, 8
    // key heads, 1024 rows and keys, head_dim 128 and a causal mask, the pass took 91 us instead of 145 us.
    const std::int64_t items =
        num_tiles(p.max_seqlen_k, sm90_backward_tile_of(p).block_n) * p.num_heads_k * p.q.shape[0];
    if (group > 1 && tiles > 1 && 2 * items <= device.num_multiprocessors) return true;
    return group >= kLargeGroup ? tiles >= kTilesOfLarge : group >= kSmallGroup && tiles >= kTilesOfSmall;
  }

  [[nodiscard]] static uint32 section_of(const Problem& p, const Sm90BackwardPlan& plan, const Sm90BackwardVariant& v,
                                         bool is_full) {
    if (v.owns_heads != 0) return 1;  // the list of work items has the key blocks of a head one after another
    const bool is_deterministic = v.is_deterministic != 0;
    if (!is_full || !is_deterministic) {
      return sm90_backward_section(p.max_seqlen_q, is_full, is_deterministic, plan.tile.is_persistent);
    }
    return sm90_backward_full_section(plan.tile, num_tiles(p.max_seqlen_k, plan.tile.block_n),
                                      cuda::device_info(p.q.device.index).num_multiprocessors);
  }

  [[nodiscard]] KernelSpec spec_of(const Sm90BackwardVariant& v, const Arch& arch, const char* function, int threads,
                                   int smem_bytes) const {
    const Sm90BackwardTile tile = v.tile();
    const Constant of_tile[] = {{"kBlockM", kBackwardRows},
                                {"kBlockN", tile.block_n},
                                {"kStages", tile.stages},
                                {"kDsBuffers", tile.ds_buffers},
                                {"kStagingBuffers", tile.staging_buffers},
                                {"kComputeRegisters", tile.compute_registers},
                                {"kQueryRegisters", tile.query_registers},
                                {"kLoadRegisters", tile.load_registers},
                                {"kThreads", threads},
                                {"kSmemBytes", smem_bytes}};
    KernelSpec spec = {
        .name = function,
        .source = std::string("sm90/") + function + ".cuh",
        .function = function,
        .args = Sm90BackwardArgs::kTypeName,
        .config = config_of<Sm90BackwardVariant>(
            v, option::kAll | option::kCustomScore | option::kCapturedGradients | option::kBlockMask | option::kRing,
            kSm90BackwardFields, v),
        .arch = arch.target,
        .dynamic_smem_bytes = static_cast<unsigned>(smem_bytes)};
    spec.config.insert(spec.config.end(), std::begin(of_tile), std::end(of_tile));
    return spec;
  }
};

}  // namespace

std::unique_ptr<const Family> sm90_backward_family() {
  return std::make_unique<const Sm90Backward>();
}

}  // namespace attend::cuda
