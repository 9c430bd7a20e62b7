// sm90_forward: float16 and bfloat16 forward on Hopper's warpgroup instructions, every option.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "cuda/launch/estimate.hpp"
#include "cuda/launch/families.hpp"
#include "cuda/launch/kernel_args.hpp"
#include "cuda/launch/tensor_maps.hpp"
#include "kernels/common/work.cuh"
#include "kernels/sm90/sm90_forward_args.cuh"
#include "kernels/sm90/sm90_forward_shape.cuh"

namespace attend::cuda {
namespace {

using core::Problem;

struct Sm90ForwardVariant : Facts {
  Sm90ForwardTile tile = {};
  std::int32_t puts_aside = 0;  ///< sums over very many keys are cut into pieces: kernels/sm90/sm90_long_sum.cuh
  std::int32_t bias_tiles = 0;  ///< the copy engine brings the bias

  [[nodiscard]] int smem_bytes() const {
    return sm90_forward_smem_bytes(tile.consumers, tile.block_n, tile.stages, tile.q_buffers, head_dim, head_dim_v,
                                   bias_tiles != 0, has(option::kDropout));
  }
};

constexpr std::size_t kTileAt = sizeof(Facts) / sizeof(std::int32_t);  // among the variant's ints

Sm90ForwardVariant with(const Facts& facts, int consumers, int block_n, int stages, int q_buffers, bool overlap,
                        bool speculate) {
  Sm90ForwardVariant v = {facts};
  // Registers of a thread: what 64 K divided among the warpgroups allow.
  v.tile = {.consumers = consumers,
            .block_n = block_n,
            .stages = stages,
            .q_buffers = q_buffers,
            .producer_registers = consumers == 3 ? 32 : 40,
            .consumer_registers = consumers == 3   ? 160
                                  : consumers == 2 ? 232
                                                   : 248,
            .overlaps = overlap,
            .takes_turns = consumers > 1,
            .speculates = speculate,
            .schedule = Sm90Schedule::kDynamic};
  return v;
}

/// Rules that read memory for each score, and others beside them.
bool is_crowded(const Facts& facts) {
  return facts.has(option::kBias | option::kBoolMask) &&
         facts.has(option::kDropout | option::kSoftcap | option::kAlibi);
}

/// Does the copy engine bring the bias? Of a problem whose bias it can take.
bool has_bias_tiles(const Facts& facts) {
  return facts.has(option::kBias) && !facts.has(option::kBoolMask) && !is_crowded(facts) &&
         facts.bias != ElementType::kF32;
}

/// The tile for the facts; docs/hopper_forward.md has the measurements behind it.
Sm90ForwardVariant tall_variant(const Facts& facts, std::int64_t seqlen_k, bool bias_tiles) {
  const int widest = std::max(facts.head_dim, facts.head_dim_v);
  const bool plain = (facts.options & ~option::kRing) == 0;
  // Rules that read memory for each score, or several rules at once, want registers.
  const bool reads = facts.has(option::kBias | option::kBoolMask);
  if (bias_tiles) {
    Sm90ForwardVariant v =
        widest <= 128 ? with(facts, 2, 128, 2, 1, true, false) : with(facts, 2, 64, 2, 1, false, false);
    v.bias_tiles = 1;
    return v;
  }
  if (is_crowded(facts) || facts.has(option::kBias)) return with(facts, 2, 64, 2, 1, false, false);
  const bool several = facts.has(option::kDropout) && facts.has(option::kAlibi);
  if (widest <= 64 && !reads && !several && !facts.has(option::kVarlen)) {
    const bool is_short = plain && facts.mask == MaskKind::kCausal && seqlen_k <= 1024;
    return is_short ? with(facts, 3, 64, 4, 2, false, true) : with(facts, 3, 128, 2, 2, false, true);
  }
  if (widest <= 96 && plain) return with(facts, 3, 96, 2, 2, false, true);
  if (widest <= 64 && several) return with(facts, 2, 128, 2, 2, false, true);
  if (widest <= 128) return with(facts, 2, 128, 2, 2, true, !several);
  if (widest <= 192 && facts.head_dim_v <= 128 && facts.options == 0) return with(facts, 2, 128, 2, 1, true, true);
  if (widest <= 192) return with(facts, 2, 112, 2, 1, plain, false);
  return with(facts, 2, plain ? 80 : 64, 2, 1, plain, false);
}

/// Without a mask all tiles are alike, and over few keys it costs more to ask for the next than to have it given: over
/// many, blocks drift apart, and whoever is free had better take it.
Sm90Schedule schedule_of(const Facts& facts, std::int64_t seqlen_k) {
  constexpr std::int64_t kFewKeys = 4096;
  const bool is_even = facts.mask == MaskKind::kFull && !facts.has(option::kVarlen) && seqlen_k <= kFewKeys;
  return is_even ? Sm90Schedule::kStatic : Sm90Schedule::kDynamic;
}

/// One consumer: for heads with few rows.
Sm90ForwardVariant low_variant(const Facts& facts, bool bias_tiles) {
  const int widest = std::max(facts.head_dim, facts.head_dim_v);
  if (bias_tiles) {
    Sm90ForwardVariant v = with(facts, 1, 64, 2, 1, false, false);
    v.bias_tiles = 1;
    return v;
  }
  if (is_crowded(facts) || facts.has(option::kBias)) return with(facts, 1, 64, 2, 1, false, false);
  return with(facts, 1, widest <= 128 ? 128 : 64, widest <= 128 ? 3 : 2, 1, true, false);
}

double tflops_of(const Sm90ForwardVariant& v) {
  const int widest = std::max(v.head_dim, v.head_dim_v);
  double rate = widest <= 64 ? 560 : widest <= 96 ? 600 : widest <= 128 ? 650 : 700;
  if (v.has(option::kSoftcap | option::kDropout | option::kBias | option::kBoolMask)) rate *= 0.65;
  return v.tile.consumers == 1 ? 0.55 * rate : rate;
}

constexpr int kMostCrowdedHeadDim = 192;  // beyond it registers spill with a bias, or a mask and other rules
constexpr std::int64_t kMostLength = (std::int64_t{1} << 31) - 1024;  // rows and keys of a tile beyond it stay ints
constexpr std::int64_t kMostTiles = (std::int64_t{1} << 31) - 1;      // what the device counts them in

std::string tiles_text(const Problem& p) {
  return std::to_string(p.num_sequences) + " sequences, " + std::to_string(p.num_heads_q) + " heads, max_seqlen_q " +
         std::to_string(p.max_seqlen_q);
}

class Sm90Forward final : public Family {
 public:
  Sm90Forward() : Family("sm90_forward", "float16 and bfloat16 on Hopper's tensor cores, every option") {
    has_backward = false;
    takes = option::kAll | option::kRing;
    dtypes.bits = core::dtype_bit(DType::kF16) | core::dtype_bit(DType::kBF16);
  }

  [[nodiscard]] bool supports(const Arch& arch) const override { return arch.wgmma; }

  [[nodiscard]] Choice choose(const Problem& p, const DeviceInfo& device) const override {
    Facts facts = facts_of(p, true);
    facts.aligned = 1;  // as lack() asks
    const bool bias_tiles = has_bias_tiles(facts) && !bias_map_lack(p);
    Sm90ForwardVariant tall = tall_variant(facts, p.max_seqlen_k, bias_tiles);
    Sm90ForwardVariant low = low_variant(facts, bias_tiles);
    tall.tile.schedule = low.tile.schedule = schedule_of(facts, p.max_seqlen_k);
    tall.puts_aside = low.puts_aside = puts_sums_aside(facts.element, p.max_seqlen_k);
    Choice choice = {.variant = tall, .why = "Hopper's tensor cores: row tiles as tall as registers allow"};
    lay_out(p, device, choice);
    Choice other = {.variant = low, .why = "Hopper's tensor cores: few rows, so tiles of 64"};
    lay_out(p, device, other);
    return other.seconds < choice.seconds ? other : choice;
  }

  void lay_out(const Problem& p, const DeviceInfo& device, Choice& choice) const override {
    const auto v = choice.variant.as<Sm90ForwardVariant>();
    const Sm90ForwardGrid grid = grid_of(p, v, device.num_multiprocessors);
    choice.num_steps = 0;
    choice.add_step({.blocks = grid.blocks});
    choice.seconds = estimated_seconds(p, device,
                                       {.tflops = tflops_of(v),
                                        .block_m = v.tile.block_m(),
                                        .blocks = grid.total_tiles,
                                        .blocks_per_multiprocessor = 1,
                                        .num_steps = 1});
  }

  [[nodiscard]] std::vector<KernelSpec> kernels(const Variant& variant, const Arch& arch) const override {
    const auto v = variant.as<Sm90ForwardVariant>();
    const Sm90ForwardTile& tile = v.tile;
    const bool dynamic = tile.schedule == Sm90Schedule::kDynamic;
    return {{.name = name,
             .source = "sm90/sm90_forward.cuh",
             .function = name,
             .args = Sm90ForwardArgs::kTypeName,
             .config = constants_of(v, takes,
                                    {{"kThreads", tile.threads()},
                                     {"kConsumers", tile.consumers},
                                     {"kBlockM", tile.block_m()},
                                     {"kBlockN", tile.block_n},
                                     {"kStages", tile.stages},
                                     {"kQBuffers", tile.q_buffers},
                                     {"kProducerRegisters", tile.producer_registers},
                                     {"kConsumerRegisters", tile.consumer_registers},
                                     {"kOverlap", tile.overlaps != 0},
                                     {"kPingPong", tile.takes_turns != 0},
                                     {"kSpeculate", tile.speculates != 0},
                                     {"kPutsAside", v.puts_aside != 0},
                                     {"kBiasTiles", v.bias_tiles != 0},
                                     {"kSchedule", EnumConstant{"Sm90Schedule", dynamic ? "kDynamic" : "kStatic"}},
                                     {"kSmemBytes", v.smem_bytes()}}),
             .arch = arch.target,
             .dynamic_smem_bytes = static_cast<unsigned>(v.smem_bytes())}};
  }

  [[nodiscard]] Workspace workspace(const Problem& /*p*/, const Choice& choice) const override {
    Workspace workspace;
    const auto v = choice.variant.as<Sm90ForwardVariant>();
    const std::int64_t sums = sm90_aside_bytes(choice.steps[0].blocks, v.tile.consumers, v.head_dim_v);
    const bool dynamic = v.tile.schedule == Sm90Schedule::kDynamic;
    workspace.add({.name = "next tile", .bytes = dynamic ? std::int64_t{sizeof(uint32)} : 0, .zeroed = true});
    workspace.add({.name = "sums put aside", .bytes = v.puts_aside != 0 ? sums : 0});
    return workspace;
  }

  void launch(const Launch& launch) const override {
    const Problem& p = launch.problem;
    if (p.q.numel() == 0) return;  // no address for a map either
    const auto v = launch.choice.variant.as<Sm90ForwardVariant>();
    const Sm90ForwardGrid grid = grid_of(p, v, launch.choice.steps[0].blocks);
    Sm90ForwardArgs args = {
        .q_map = row_map(p.q, v.tile.block_m(), p.q.data),
        .k_map = row_map(p.k, v.tile.block_n, p.q.data),
        .v_map = row_map(p.v, v.tile.block_n, p.q.data),
        .o_map = row_map(p.adds_to_outputs() ? p.q : p.o, kSm90ConsumerRows, p.q.data),  // unused then
        .bias_map = v.bias_tiles != 0 ? row_map(stored_bias(p), v.tile.block_m(), p.q.data) : TensorMapArg{},
        .base = forward_args(p, launch.region(1), true),
        .options = option_args_of(p),
        .next_tile = launch.region<uint32>(0),
        .total_tiles = grid.total_tiles,
        .row_tiles = grid.row_tiles,
        .section_heads = grid.section_heads,
        .scale_log2 = folded_scale(p.scale * made_up_for_cut_off(p))};
    args.base.scale = made_up_scale(p, true);
    launch.run(0, args);
  }

  [[nodiscard]] std::vector<Variant> examples(const Arch& arch) const override;

  [[nodiscard]] std::span<const Tunable> tunables(const Variant& /*variant*/) const override {
    static const std::vector<Tunable> kAll =
        tunables_of({{kTileAt,
                      {"consumers", "block_n", "stages", "q_buffers", "producer_registers", "consumer_registers",
                       "overlap", "ping_pong", "speculate", "dynamic", "puts_aside"}}});
    return kAll;
  }

 protected:
  [[nodiscard]] std::optional<core::Lack> lack_of_its_own(const Problem& p,
                                                          const DeviceInfo& /*device*/) const override {
    if (auto lack = head_dim_lack(p, {}, kSm90LargestHeadDim, true)) return lack;
    for (const auto& [tensor, head_dim] : {std::pair{"q", p.head_dim}, {"v", p.head_dim_v}}) {  // o in 16 bytes
      if (head_dim % 8 != 0) return core::Lack{tensor, "head_dim", head_dim, "multiples of 8"};
    }
    if (const std::int64_t widest = std::max(p.head_dim, p.head_dim_v);
        widest > kMostCrowdedHeadDim && (p.bias || is_crowded(facts_of(p, true)))) {
      return core::Lack{
          p.head_dim == widest ? "q" : "v", "head_dim", widest,
          p.bias ? "1 to 192 with a bias" : "1 to 192 with a mask and softcap, alibi_slopes or dropout_p"};
    }
    if (auto lack = length_lack(p, kMostLength)) return lack;
    if (auto lack = part_lack(p)) return lack;
    if (num_tiles(p.max_seqlen_q, kSm90ConsumerRows) * p.num_sequences * p.num_heads_q > kMostTiles) {
      return core::Lack{"q", "rows of all sequences and heads:", tiles_text, "2^31 - 1 tiles of 64"};
    }
    return tensor_map_lack(p);
  }

 private:
  static Sm90ForwardGrid grid_of(const Problem& p, const Sm90ForwardVariant& v, std::int64_t blocks) {
    const std::int64_t bytes_per_key = (p.head_dim + p.head_dim_v) * dtype_bytes(p.q.dtype);
    return Sm90ForwardGrid::of(p.num_sequences, p.num_heads_q, p.num_heads_k, p.max_seqlen_q, p.max_seqlen_k,
                               bytes_per_key, v.tile.block_m(), blocks);
  }
  /// The scale in the exponent of 2, never so small that a masked score's -inf times it is NaN.
  static float folded_scale(double scale) {
    constexpr double kLog2E = 1.4426950408889634, kLeast = 0x1p-100, kMost = std::numeric_limits<float>::max();
    return static_cast<float>(std::clamp(std::abs(scale) * kLog2E, kLeast, kMost));
  }
};

/// Each head_dim of the products, both types, every mask; each option alone, and all that go together; negated scores.
std::vector<Variant> Sm90Forward::examples(const Arch& /*arch*/) const {
  using enum ElementType;
  using enum MaskKind;
  std::vector<Variant> variants;
  const auto add = [&](const Facts& f, std::int64_t seqlen_k = 512) {
    Sm90ForwardVariant v = tall_variant(f, seqlen_k, has_bias_tiles(f));
    v.tile.schedule = schedule_of(f, seqlen_k);
    if (std::find(variants.begin(), variants.end(), Variant(v)) == variants.end()) variants.emplace_back(v);
  };
  const auto facts = [](ElementType element, int head_dim, int head_dim_v, MaskKind mask, std::int32_t options = 0,
                        ElementType bias = kF32, bool negate = false) {
    return Facts{.element = element,
                 .head_dim = head_dim,
                 .head_dim_v = head_dim_v,
                 .mask = mask,
                 .options = options,
                 .bias = bias,
                 .negate_scores = negate};
  };
  for (const int head_dim : {64, 80, 96, 112, 128, 160, 192, 256}) {
    add(facts(kBF16, head_dim, head_dim, kFull));
    add(facts(kBF16, head_dim, head_dim, kCausal));
    add(facts(kBF16, head_dim, head_dim, kCausal, 0, kF32, true));
    add(facts(kF16, head_dim, head_dim, kWindow));
  }
  for (const int head_dim : {64, 128, 256}) {
    add(facts(kBF16, head_dim, head_dim, kFull), 16384);
    add(facts(kBF16, head_dim, head_dim, kCausal), 16384);
    add(facts(kF16, head_dim, head_dim, kCausal, 0, kF32, true), 16384);
  }
  add(facts(kBF16, 192, 128, kCausal));
  add(facts(kF16, 192, 128, kWindow));
  add(facts(kBF16, 192, 128, kFull, 0, kF32, true));
  for (const int head_dim : {64, 128, 256}) {
    Sm90ForwardVariant v = tall_variant(facts(kF16, head_dim, head_dim, kCausal), 1 << 20, false);
    v.puts_aside = 1;
    variants.emplace_back(v);
  }
  add(facts(kF16, 40, 80, kFull));
  for (const int head_dim : {64, 128, 256}) {  // of a ring
    add(facts(kBF16, head_dim, head_dim, kFull, option::kAddsToOutputs), 16384);
    add(facts(kBF16, head_dim, head_dim, kCausal, option::kAddsToOutputs), 16384);
    add(facts(kF16, head_dim, head_dim, kWindow, option::kRing | option::kAlibi));
    add(facts(kBF16, head_dim, head_dim, kFull, option::kRing | option::kDropout));
    add(facts(kBF16, head_dim, head_dim, kCausal, option::kDropout | option::kPhiloxState));
    add(facts(kF16, head_dim, head_dim, kWindow, option::kDropout | option::kPhiloxState | option::kVarlen));
  }
  add(facts(kBF16, 128, 128, kCausal, option::kAddsToOutputs | option::kSoftcap));
  add(facts(kBF16, 128, 128, kCausal, option::kAddsToOutputs | option::kBias, kBF16));
  variants.emplace_back(tall_variant(facts(kBF16, 128, 128, kFull, option::kBias, kBF16), 512, false));  // unaligned
  add(facts(kF16, 128, 128, kWindow,
            option::kRing | option::kSoftcap | option::kAlibi | option::kBias | option::kBoolMask | option::kDropout,
            kF32));
  for (const int head_dim : {64, 128, 256}) {
    const auto add_low = [&](const Facts& f) {
      Sm90ForwardVariant v = low_variant(f, has_bias_tiles(f));
      v.tile.schedule = schedule_of(f, 512);
      variants.emplace_back(v);
    };
    add_low(facts(kBF16, head_dim, head_dim, kFull));
    add_low(facts(kBF16, head_dim, head_dim, kCausal, 0, kF32, true));
    add_low(facts(kF16, head_dim, head_dim, kFull, option::kVarlen));
    for (const bool negate : {false, true}) {
      add_low(facts(kBF16, head_dim, head_dim, kWindow, option::kSoftcap | option::kAlibi | option::kDropout, kF32,
                    negate));
    }
    if (head_dim <= kMostCrowdedHeadDim) {
      add_low(facts(kBF16, head_dim, head_dim, kCausal, option::kBias, kF32));
      add_low(facts(kF16, head_dim, head_dim, kWindow,
                    option::kSoftcap | option::kAlibi | option::kBias | option::kBoolMask | option::kDropout, kF16));
    }
    add_low(facts(kBF16, head_dim, head_dim, kFull, option::kBoolMask));
    for (const std::int32_t bit :
         {option::kSoftcap, option::kAlibi, option::kBias, option::kBoolMask, option::kDropout, option::kVarlen}) {
      if (bit == option::kBias && head_dim > kMostCrowdedHeadDim) continue;
      add(facts(kBF16, head_dim, head_dim, bit == option::kBias ? kFull : kCausal, bit, kBF16));
    }
    for (const bool negate : {false, true}) {
      if (head_dim > kMostCrowdedHeadDim) continue;
      for (const std::int32_t dropout : {0, option::kDropout}) {
        add(facts(negate ? kBF16 : kF16, head_dim, head_dim, kWindow,
                  option::kSoftcap | option::kAlibi | option::kBias | option::kBoolMask | dropout, kF32, negate));
      }
    }
  }
  for (const int head_dim : {64, 128, 192, 256}) {
    for (const std::int32_t others :
         {option::kAlibi | option::kVarlen, option::kAlibi | option::kRing,
          option::kSoftcap | option::kAlibi | option::kVarlen, option::kSoftcap | option::kAlibi | option::kRing}) {
      add(facts(kF16, head_dim, head_dim, kWindow, option::kDropout | others, kF32, true));
    }
    if (head_dim <= kMostCrowdedHeadDim) {
      add(facts(kBF16, head_dim, head_dim, kCausal, option::kDropout | option::kBias, kBF16));
    }
  }
  return variants;
}

}  // namespace

std::unique_ptr<const Family> sm90_forward_family() {
  return std::make_unique<const Sm90Forward>();
}

}  // namespace attend::cuda
