// The kernel family sm90_forward. It computes float16 and bfloat16 forward passes with Hopper's warpgroup
// instructions and supports all options.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "core/score_options.hpp"
#include "cuda/launch/estimate.hpp"
#include "cuda/launch/families.hpp"
#include "cuda/launch/kernel_args.hpp"
#include "cuda/launch/merge_step.hpp"
#include "cuda/launch/sm90_forward_split.hpp"
#include "cuda/launch/sm90_forward_variant.hpp"
#include "cuda/launch/sm90_mask_steps.hpp"
#include "cuda/launch/tensor_maps.hpp"
#include "kernels/attention/work.cuh"
#include "kernels/sm90/sm90_forward_args.cuh"

namespace attend::cuda {
namespace {

using core::Problem;

double tflops_of(const Sm90ForwardVariant& v) {
  const int widest = std::max(v.head_dim, v.head_dim_v);
  double rate = widest <= 64 ? 560 : widest <= 96 ? 600 : widest <= 128 ? 650 : 700;
  const ScoreModTraits score = v.score();
  if (score.transforms || score.drops || score.reads_memory()) rate *= 0.65;
  // A tile of 128 rows is slower than a tile of 192 rows.
  const bool is_middle = widest <= 64 && v.tile.consumers == 2;
  return v.tile.consumers == 1 ? 0.55 * rate : is_middle ? 0.85 * rate : rate;
}

// The last tile may extend past the end of a sequence. Its positions must still fit in an int.
constexpr std::int64_t kMostLength = (std::int64_t{1} << 31) - 1024;
constexpr std::int64_t kMostTiles = (std::int64_t{1} << 31) - 1;  // the kernel counts tiles in 32 bits

/// The kernel supports only block masks, so a boolean mask is converted to lists.
Sm90MaskLists mask_lists_of(const Sm90ForwardVariant& v) {
  return {.by_rows_rows = v.tile.block_m(), .by_rows_keys = v.tile.block_n};
}
/// Returns the number of kernels that run before the main kernel.
std::size_t steps_before(const Sm90ForwardVariant& v) {
  return v.lists_from_mask != 0 ? mask_lists_of(v).num_steps() : 0;
}

std::string tiles_text(const Problem& p) {
  return std::to_string(p.num_sequences) + " sequences, " + std::to_string(p.num_heads_q) + " heads, max_seqlen_q " +
         std::to_string(p.max_seqlen_q);
}

class Sm90Forward final : public Family {
 public:
  Sm90Forward() : Family("sm90_forward", "float16 and bfloat16 on Hopper's tensor cores, every option") {
    has_backward = false;
    takes = option::kAll | option::kCustomScore | option::kBlockMask | option::kRing;
    dtypes.bits = core::dtype_bit(DType::kF16) | core::dtype_bit(DType::kBF16);
  }

  [[nodiscard]] bool supports(const Arch& arch) const override { return arch.wgmma; }

  [[nodiscard]] Choice choose(const Problem& p, const DeviceInfo& device) const override {
    Facts facts = facts_of(p, true);
    facts.aligned = 1;  // lack_of_its_own() refuses unaligned tensors
    facts.see_mask_as_blocks();
    const bool bias_tiles = sm90_takes_bias_tiles(facts) && !bias_map_lack(p);
    const Sm90ForwardVariant tall = sm90_forward_tall(facts, p.max_seqlen_k, bias_tiles);
    Choice best;
    const auto offer = [&](Sm90ForwardVariant v, const char* why, const char* why_split) {
      v.tile.schedule = sm90_forward_schedule(facts, p.max_seqlen_k);
      v.puts_aside = puts_sums_aside(facts.element, p.max_seqlen_k);
      offer_choice(p, device, v, why, best);
      if (!is_worth_splitting(p, v, device)) return;
      v.splits_keys = 1;
      v.tile.schedule = Schedule::kStatic;
      offer_choice(p, device, v, why_split, best);
    };
    offer(tall, "Hopper's tensor cores: the tallest row tiles that registers allow",
          "Hopper's tensor cores: tall row tiles, whose keys several blocks share");
    if (const auto middle = sm90_forward_middle(facts, tall)) {
      offer(*middle, "Hopper's tensor cores: row tiles of 128, which fill the GPU better than taller ones",
            "Hopper's tensor cores: row tiles of 128, whose keys several blocks share");
    }
    offer(sm90_forward_low(facts, bias_tiles), "Hopper's tensor cores: few rows, so tiles of 64",
          "Hopper's tensor cores: few rows, so tiles of 64, whose keys several blocks share");
    return best;
  }

  void lay_out(const Problem& p, const DeviceInfo& device, Choice& choice) const override {
    const auto v = choice.variant.as<Sm90ForwardVariant>();
    const Sm90ForwardGrid grid = grid_of(p, v, device.num_multiprocessors);
    const std::int64_t splits = v.splits_keys != 0 ? best_splits(p, v, grid, device) : 1;
    choice.num_steps = 0;
    choice.seconds = 0;
    if (v.lists_from_mask != 0) {
      const Sm90MaskSteps mask_steps(p, mask_lists_of(v));
      mask_steps.add_steps(choice);
      choice.seconds = mask_steps.seconds(device);
    }
    choice.add_step({.blocks = v.splits_keys != 0 ? splits * grid.total_tiles : grid.blocks});
    if (v.splits_keys != 0) choice.add_step({.blocks = merge_step_blocks(rows_of(p)), .overlaps_previous = true});
    choice.seconds += seconds(p, v, grid, splits, device);
  }

  [[nodiscard]] std::vector<KernelSpec> kernels(const Variant& variant, const Arch& arch) const override {
    const auto v = variant.as<Sm90ForwardVariant>();
    std::vector<KernelSpec> specs;
    if (v.lists_from_mask != 0) mask_lists_of(v).add_specs(arch, specs);
    specs.push_back(sm90_forward_spec(v, takes, arch.target));
    if (v.splits_keys != 0) specs.push_back(merge_step_spec(arch.target));
    return specs;
  }

  [[nodiscard]] Workspace workspace(const Problem& p, const Choice& choice) const override {
    Workspace workspace;
    const auto v = choice.variant.as<Sm90ForwardVariant>();
    const std::int64_t sums = sm90_aside_bytes(choice.steps[steps_before(v)].blocks, v.tile.consumers, v.head_dim_v);
    const bool dynamic = v.tile.schedule == Schedule::kDynamic;
    workspace.add({.name = "next tile", .bytes = dynamic ? std::int64_t{sizeof(uint32)} : 0, .zeroed = true});
    workspace.add({.name = "saved sums", .bytes = v.puts_aside != 0 ? sums : 0});
    workspace.add({.name = "o and lse over parts of the keys",
                   .bytes = v.splits_keys != 0 ? sm90_forward_split_bytes(p, splits_of(p, v, choice)) : 0});
    workspace.add({.name = "tiles of the mask",
                   .bytes = v.lists_from_mask != 0 ? Sm90MaskSteps(p, mask_lists_of(v)).bytes() : 0});
    return workspace;
  }

  void launch(const Launch& launch) const override {
    const Problem& p = launch.problem;
    if (p.q.numel() == 0) return;  // a tensor without elements has no address for a tensor map
    const auto v = launch.choice.variant.as<Sm90ForwardVariant>();
    const std::size_t step = steps_before(v);
    const std::int64_t splits = v.splits_keys != 0 ? splits_of(p, v, launch.choice) : 1;
    const Sm90ForwardGrid grid = grid_of(p, v, launch.choice.steps[step].blocks);
    Sm90ForwardArgs args = {
        .q_map = row_map(p.q, v.tile.block_m(), p.q.data),
        .k_map = row_map(p.k, v.tile.block_n, p.q.data),
        .v_map = row_map(p.v, v.tile.block_n, p.q.data),
        // A kernel that adds to existing outputs does not use o_map, so any valid map will do.
        .o_map = row_map(p.adds_to_outputs() ? p.q : p.o, kSm90ConsumerRows, p.q.data),
        .terms_map = v.bias_tiles != 0 ? row_map(stored_bias(p), v.tile.block_m(), p.q.data) : TensorMapArg{},
        .next_tile = launch.region<uint32>(0),
        .total_tiles = static_cast<uint32>(grid.total_tiles * splits),
        .row_tiles = grid.row_tiles,
        .section_heads = grid.section_heads,
        .scale_log2 = sm90_folded_scale(p),
        .base = forward_args(p, launch.region(1), true),
        .options = option_args_of(p),
        .splits = static_cast<uint32>(splits),
        .unused = 0};
    args.base.scale = made_up_scale(p, true);
    args.options.block_mask = mask_lists_of(v).args(launch, launch.region<std::byte>(3)).by_rows;
    if (v.splits_keys == 0) return launch.run(step, args);
    const auto parts = Sm90ForwardParts::of(p, splits, launch.region(2));
    args.base.o = parts.o;
    args.base.lse = parts.lse;
    args.base.o_stride = parts.o_stride;
    args.base.lse_stride = parts.lse_stride;
    launch.run(step, args);
    MergeArgs merge = parts.merge_args(p, splits);
    launch.run(step + 1, merge);
  }

  [[nodiscard]] std::span<const Tunable> tunables(const Variant& /*variant*/) const override {
    static const std::vector<Tunable> kAll = tunables_of<Sm90ForwardVariant>(kSm90ForwardFields);
    return kAll;
  }

 protected:
  [[nodiscard]] std::optional<core::Lack> lack_of_its_own(const Problem& p,
                                                          const DeviceInfo& /*device*/) const override {
    if (auto lack = head_dim_lack(p, {}, kSm90LargestHeadDim, true)) return lack;
    // TMA stores o in units of 16 bytes.
    for (const auto& [tensor, head_dim] : {std::pair{"q", p.head_dim}, {"v", p.head_dim_v}}) {
      if (head_dim % 8 != 0) return core::Lack{tensor, "head_dim", head_dim, "multiples of 8"};
    }
    if (const std::int64_t widest = std::max(p.head_dim, p.head_dim_v); widest > kSm90MostHeadDimWithBias && p.bias) {
      return core::Lack{p.head_dim == widest ? "q" : "v", "head_dim", widest, "1 to 192 with a bias"};
    }
    if (auto lack = custom_score_lack(p, option::kRing)) return lack;
    if (auto lack = length_lack(p, kMostLength)) return lack;
    if (auto lack = part_lack(p)) return lack;
    if (p.mask) {
      constexpr Sm90MaskLists kAny = {.by_rows_rows = kSm90ConsumerRows, .by_rows_keys = core::kMaskTile};
      if (auto lack = Sm90MaskSteps(p, kAny).lack()) return lack;
    }
    if (num_tiles(p.max_seqlen_q, kSm90ConsumerRows) * p.num_sequences * p.num_heads_q > kMostTiles) {
      return core::Lack{"q", "rows of all sequences and heads:", tiles_text, "2^31 - 1 tiles of 64"};
    }
    return tensor_map_lack(p);
  }

 private:
  void offer_choice(const Problem& p, const DeviceInfo& device, const Sm90ForwardVariant& v, const char* why,
                    Choice& best) const {
    Choice choice = {.variant = v, .why = why};
    lay_out(p, device, choice);
    if (best.num_steps == 0 || choice.seconds < best.seconds) best = choice;
  }

  static std::int64_t rows_of(const Problem& p) { return p.q.shape[0] * p.num_heads_q * p.max_seqlen_q; }

  /// Returns whether splitting the keys may be faster. Splitting may be faster if each multiprocessor processes only
  /// one tile. It may also be faster with two tiles per multiprocessor, if many multiprocessors are idle during the
  /// second tile.
  static bool is_worth_splitting(const Problem& p, const Sm90ForwardVariant& v, const DeviceInfo& device) {
    constexpr std::int64_t kFewWaves = 2;
    const Sm90ForwardGrid grid = grid_of(p, v, device.num_multiprocessors);
    return v.tile.consumers > 0 && sm90_forward_can_split(p) && p.q.numel() > 0 &&
           grid.total_tiles < kFewWaves * device.num_multiprocessors && most_splits(p, v) > 1;
  }
  /// Returns the largest number of parts into which the keys may be split. Each part has at least four key tiles,
  /// because the first and the last key tile of a part take longer.
  static std::int64_t most_splits(const Problem& p, const Sm90ForwardVariant& v) {
    constexpr std::int64_t kLeastTiles = 4;
    return std::min(kSm90MostSplits, num_tiles(p.max_seqlen_k, v.tile.block_n) / kLeastTiles);
  }
  static std::int64_t best_splits(const Problem& p, const Sm90ForwardVariant& v, const Sm90ForwardGrid& grid,
                                  const DeviceInfo& device) {
    std::int64_t best = 2;
    for (std::int64_t splits = 3; splits <= most_splits(p, v); ++splits) {
      if (seconds(p, v, grid, splits, device) < seconds(p, v, grid, best, device)) best = splits;
    }
    return best;
  }
  /// Returns the number of parts into which the keys are split in this choice.
  static std::int64_t splits_of(const Problem& p, const Sm90ForwardVariant& v, const Choice& choice) {
    const Sm90ForwardGrid grid = grid_of(p, v, 1);
    return grid.total_tiles == 0 ? 1 : choice.steps[steps_before(v)].blocks / grid.total_tiles;
  }

  /// Returns the estimated time in seconds, without the time of the kernels that build mask lists.
  static double seconds(const Problem& p, const Sm90ForwardVariant& v, const Sm90ForwardGrid& grid, std::int64_t splits,
                        const DeviceInfo& device) {
    const std::int64_t blocks = splits * grid.total_tiles;
    double found = estimated_seconds(p, device,
                                     {.tflops = tflops_of(v),
                                      .block_m = v.tile.block_m(),
                                      .blocks = blocks,
                                      .blocks_per_multiprocessor = 1,
                                      .num_steps = v.splits_keys != 0 ? std::size_t{2} : std::size_t{1},
                                      .has_whole_waves = true});
    if (v.splits_keys != 0) {
      // Time of a block before its first matrix product and after its last one.
      constexpr double kSecondsOfBlock = 2e-6;
      constexpr double kPartsPerSecond = 2e12;  // bytes per second for writing and reading the results of the parts
      const double waves = std::ceil(static_cast<double>(blocks) / device.num_multiprocessors);
      found += waves * kSecondsOfBlock + static_cast<double>(2 * sm90_forward_split_bytes(p, splits)) / kPartsPerSecond;
    }
    return found;
  }

  static Sm90ForwardGrid grid_of(const Problem& p, const Sm90ForwardVariant& v, std::int64_t blocks) {
    const std::int64_t bytes_per_key = (p.head_dim + p.head_dim_v) * dtype_bytes(p.q.dtype);
    return Sm90ForwardGrid::of(p.num_sequences, p.num_heads_q, p.num_heads_k, p.max_seqlen_q, p.max_seqlen_k,
                               bytes_per_key, v.tile.block_m(), blocks);
  }
};

}  // namespace

std::unique_ptr<const Family> sm90_forward_family() {
  return std::make_unique<const Sm90Forward>();
}

}  // namespace attend::cuda
