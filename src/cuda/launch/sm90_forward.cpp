// sm90_forward: float16 and bfloat16 forward on Hopper's warpgroup instructions, every option.
#include <algorithm>
#include <cmath>

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

constexpr std::int32_t kTaken = option::kAll;
constexpr int kMostHeadDim = 256;
constexpr std::int64_t kLongestSum = 32768;  // keys that tensor cores may add up without harm to 16 bits

/// How a variant runs, beyond the sizes of its tile.
struct Pipeline {
  std::int32_t producer_registers, consumer_registers;
  std::int32_t overlap;    ///< p v of a tile runs under the softmax of the next
  std::int32_t ping_pong;  ///< consumers take turns at the tensor cores
  std::int32_t speculate;  ///< p is tried with the maximum of earlier tiles
  std::int32_t dynamic;    ///< whoever is free takes the next tile
  std::int32_t puts_aside; ///< sums over very many keys are cut into pieces: kernels/sm90/sm90_long_sum.cuh
};

struct Sm90ForwardVariant : Facts {
  std::int32_t consumers = 2, block_n = 128, stages = 2, q_buffers = 2;
  Pipeline pipeline = {};

  [[nodiscard]] Sm90ForwardTile tile() const { return {head_dim, head_dim_v, consumers, block_n, stages, q_buffers}; }
};

constexpr std::size_t kFactInts = sizeof(Facts) / sizeof(std::int32_t);

/// Registers of a producer's and of a consumer's thread: what 64 K divided among the warpgroups allow.
constexpr Pipeline registers_of(int consumers) {
  Pipeline pipeline = {};
  pipeline.producer_registers = consumers == 3 ? 32 : 40;
  pipeline.consumer_registers = consumers == 3 ? 160 : 232;
  return pipeline;
}

Sm90ForwardVariant with(const Facts& facts, int consumers, int block_n, int stages, int q_buffers, bool overlap,
                        bool speculate) {
  Sm90ForwardVariant v = {facts};
  v.consumers = consumers;
  v.block_n = block_n;
  v.stages = stages;
  v.q_buffers = q_buffers;
  v.pipeline = registers_of(consumers);
  v.pipeline.overlap = overlap;
  v.pipeline.ping_pong = consumers > 1;
  v.pipeline.speculate = speculate;
  return v;
}

/// The tile for the facts; docs/hopper_forward.md has the measurements behind it.
Sm90ForwardVariant tall_variant(const Facts& facts, std::int64_t seqlen_k) {
  const int widest = std::max(facts.head_dim, facts.head_dim_v);
  const bool plain = facts.options == 0;
  // Rules that read memory for each score, or several rules at once, want registers.
  const bool reads = facts.has(option::kBias | option::kBoolMask);
  const bool crowded = reads && facts.has(option::kDropout | option::kSoftcap | option::kAlibi);
  if (crowded || (facts.has(option::kBias) && widest <= 192)) return with(facts, 2, 64, 2, 1, false, false);
  if (widest <= 64 && !reads && !facts.has(option::kVarlen)) return with(facts, 3, 128, 2, 2, false, true);
  if (widest <= 128) {
    constexpr std::int64_t kLong = 4096;  // keys from which wide tiles of them gain more than a second buffer of q
    const bool wide = plain && facts.mask == MaskKind::kFull && widest > 96 && seqlen_k >= kLong;
    return wide ? with(facts, 2, 176, 2, 1, false, true) : with(facts, 2, 128, 2, 2, true, true);
  }
  if (widest <= 192) return with(facts, 2, 112, 2, 1, facts.head_dim_v <= 128, facts.head_dim_v <= 128);
  return with(facts, 2, plain ? 80 : 64, 2, 1, plain, false);
}

/// One consumer: for heads with few rows.
Sm90ForwardVariant low_variant(const Facts& facts) {
  const int widest = std::max(facts.head_dim, facts.head_dim_v);
  return with(facts, 1, widest <= 128 ? 128 : 64, widest <= 128 ? 3 : 2, 1, true, false);
}

double tflops_of(const Sm90ForwardVariant& v) {
  const int widest = std::max(v.head_dim, v.head_dim_v);
  double rate = widest <= 64 ? 560 : widest <= 96 ? 600 : widest <= 128 ? 650 : 700;
  if (v.has(option::kSoftcap | option::kDropout | option::kBias | option::kBoolMask)) rate *= 0.65;
  return v.consumers == 1 ? rate / 2 : rate;
}

class Sm90Forward final : public Family {
 public:
  Sm90Forward() : Family("sm90_forward", "float16 and bfloat16 on Hopper's tensor cores, every option") {
    has_backward = false;
    takes = kTaken;
    dtypes.bits = core::dtype_bit(DType::kF16) | core::dtype_bit(DType::kBF16);
  }

  [[nodiscard]] bool supports(const Arch& arch) const override { return arch.wgmma; }

  [[nodiscard]] Choice choose(const Problem& p, const DeviceInfo& device) const override {
    Facts facts = facts_of(p, true);
    facts.aligned = 1;  // as lack() asks
    Sm90ForwardVariant tall = tall_variant(facts, p.max_seqlen_k);
    Sm90ForwardVariant low = low_variant(facts);
    for (Sm90ForwardVariant* v : {&tall, &low}) {
      // Tiles of different lengths balance only where whoever is free takes the next.
      v->pipeline.dynamic = facts.mask != MaskKind::kFull || facts.has(option::kVarlen);
      v->pipeline.puts_aside = p.max_seqlen_k > kLongestSum;
    }
    Choice choice = {.variant = tall, .why = "Hopper's tensor cores: row tiles as tall as registers allow"};
    lay_out(p, device, choice);
    Choice other = {.variant = low, .why = "Hopper's tensor cores: few rows, so tiles of 64"};
    lay_out(p, device, other);
    return other.seconds < choice.seconds ? other : choice;
  }

  void lay_out(const Problem& p, const DeviceInfo& device, Choice& choice) const override {
    const auto v = choice.variant.as<Sm90ForwardVariant>();
    const std::int64_t tiles = num_tiles(p.max_seqlen_q, v.tile().block_m()) * p.num_sequences * p.num_heads_q;
    choice.num_steps = 0;
    choice.add_step({.blocks = std::min<std::int64_t>(tiles, device.num_multiprocessors)});
    choice.seconds = estimated_seconds(p, device,
                                       {.tflops = tflops_of(v),
                                        .block_m = v.tile().block_m(),
                                        .blocks = tiles,
                                        .blocks_per_multiprocessor = 1,
                                        .num_steps = 1});
  }

  [[nodiscard]] std::vector<KernelSpec> kernels(const Variant& variant, const Arch& arch) const override {
    const auto v = variant.as<Sm90ForwardVariant>();
    const Sm90ForwardTile tile = v.tile();
    const Pipeline& pipeline = v.pipeline;
    KernelSpec spec = {.name = name,
                       .source = "sm90/sm90_forward.cuh",
                       .function = name,
                       .args = Sm90ForwardArgs::kTypeName,
                       .config = constants_of(v, kTaken),
                       .arch = arch.target,
                       .dynamic_smem_bytes = static_cast<unsigned>(tile.smem_bytes())};
    spec.config.insert(spec.config.end(),
                       {{"kThreads", std::int64_t{tile.threads()}},
                        {"kConsumers", std::int64_t{v.consumers}},
                        {"kBlockM", std::int64_t{tile.block_m()}},
                        {"kBlockN", std::int64_t{v.block_n}},
                        {"kStages", std::int64_t{v.stages}},
                        {"kQBuffers", std::int64_t{v.q_buffers}},
                        {"kProducerRegisters", std::int64_t{pipeline.producer_registers}},
                        {"kConsumerRegisters", std::int64_t{pipeline.consumer_registers}},
                        {"kOverlap", pipeline.overlap != 0},
                        {"kPingPong", pipeline.ping_pong != 0},
                        {"kSpeculate", pipeline.speculate != 0},
                        {"kPutsAside", pipeline.puts_aside != 0},
                        {"kSchedule", EnumConstant{"Sm90Schedule", pipeline.dynamic != 0 ? "kDynamic" : "kStatic"}},
                        {"kSmemBytes", std::int64_t{tile.smem_bytes()}}});
    return {std::move(spec)};
  }

  [[nodiscard]] Workspace workspace(const Problem& /*p*/, const Choice& choice) const override {
    Workspace workspace;
    const auto v = choice.variant.as<Sm90ForwardVariant>();
    const std::int64_t sums = choice.steps[0].blocks * v.tile().block_m() * v.tile().columns_v();
    workspace.add({.name = "next tile",
                   .bytes = v.pipeline.dynamic != 0 ? std::int64_t{sizeof(uint32)} : 0,
                   .zeroed = true});
    workspace.add({.name = "sums put aside",
                   .bytes = v.pipeline.puts_aside != 0 ? sums * std::int64_t{sizeof(float)} : 0});
    return workspace;
  }

  void launch(const Launch& launch) const override {
    const Problem& p = launch.problem;
    if (launch.choice.steps[0].blocks == 0) return;  // no address for a map either
    const auto v = launch.choice.variant.as<Sm90ForwardVariant>();
    const int block_m = v.tile().block_m();
    const auto row_tiles = static_cast<uint32>(num_tiles(p.max_seqlen_q, block_m));
    const auto heads = static_cast<uint32>(p.num_sequences * p.num_heads_q);
    const std::int64_t key_bytes = p.max_seqlen_k * (p.head_dim + p.head_dim_v) * dtype_bytes(p.q.dtype);
    Sm90ForwardArgs args = {.q_map = row_map(p.q, block_m, p.q.data),
                            .k_map = row_map(p.k, v.block_n, p.q.data),
                            .v_map = row_map(p.v, v.block_n, p.q.data),
                            .o_map = row_map(p.o, kSm90RowsOfConsumer, p.q.data),
                            .base = forward_args(p, launch.region(1), true),
                            .options = option_args_of(p),
                            .next_tile = launch.region<uint32>(0),
                            .total_tiles = row_tiles * heads,
                            .row_tiles = row_tiles,
                            .section_heads = section_heads(heads, key_bytes / p.heads_per_group()),
                            .scale_log2 = folded_scale(p.scale)};
    launch.run(0, args);
  }

  [[nodiscard]] std::vector<Variant> examples(const Arch& arch) const override;

  [[nodiscard]] std::span<const Tunable> tunables(const Variant& /*variant*/) const override {
    static constexpr Tunable kAll[] = {{"consumers", kFactInts},
                                       {"block_n", kFactInts + 1},
                                       {"stages", kFactInts + 2},
                                       {"q_buffers", kFactInts + 3},
                                       {"producer_registers", kFactInts + 4},
                                       {"consumer_registers", kFactInts + 5},
                                       {"overlap", kFactInts + 6},
                                       {"ping_pong", kFactInts + 7},
                                       {"speculate", kFactInts + 8},
                                       {"dynamic", kFactInts + 9},
                                       {"puts_aside", kFactInts + 10}};
    return kAll;
  }

 protected:
  [[nodiscard]] std::optional<core::Lack> lack_of_its_own(const Problem& p) const override {
    if (auto lack = head_dim_lack(p, {}, kMostHeadDim, true)) return lack;
    return tensor_map_lack(p);
  }

 private:
  /// The scale in the exponent of 2, never so small that a masked score's -inf times it is NaN.
  static float folded_scale(double scale) {
    constexpr double kLog2E = 1.4426950408889634, kLeast = 0x1p-100;
    return static_cast<float>(std::max(std::abs(scale) * kLog2E, kLeast));
  }
};

/// Each head_dim of the products, both types, every mask; each option alone, and all that go together; negated scores.
std::vector<Variant> Sm90Forward::examples(const Arch& /*arch*/) const {
  using enum ElementType;
  using enum MaskKind;
  std::vector<Variant> variants;
  const auto add = [&](const Facts& f, std::int64_t seqlen_k = 512) {
    Sm90ForwardVariant v = tall_variant(f, seqlen_k);
    v.pipeline.dynamic = f.mask != kFull || f.has(option::kVarlen);
    variants.emplace_back(v);
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
  for (const int head_dim : {64, 96, 128, 192, 256}) {
    add(facts(kBF16, head_dim, head_dim, kFull));
    add(facts(kBF16, head_dim, head_dim, kCausal, 0, kF32, true));
    add(facts(kF16, head_dim, head_dim, kWindow));
  }
  add(facts(kBF16, 128, 128, kFull), 16384);
  add(facts(kBF16, 192, 128, kCausal));
  for (const int head_dim : {64, 128, 256}) {
    Sm90ForwardVariant v = tall_variant(facts(kF16, head_dim, head_dim, kCausal), 1 << 20);
    v.pipeline.puts_aside = 1;
    variants.emplace_back(v);
  }
  add(facts(kF16, 40, 80, kFull));
  for (const int head_dim : {64, 128, 256}) {
    variants.emplace_back(low_variant(facts(kBF16, head_dim, head_dim, kFull)));
    variants.emplace_back(low_variant(facts(kBF16, head_dim, head_dim, kCausal, 0, kF32, true)));
    for (const std::int32_t bit : {option::kSoftcap, option::kAlibi, option::kBias, option::kBoolMask, option::kDropout,
                                   option::kVarlen}) {
      add(facts(kBF16, head_dim, head_dim, bit == option::kBias ? kFull : kCausal, bit, kBF16));
    }
    for (const bool negate : {false, true}) {
      add(facts(negate ? kBF16 : kF16, head_dim, head_dim, kWindow,
                option::kSoftcap | option::kAlibi | option::kBias | option::kBoolMask | option::kDropout, kF32, negate));
    }
  }
  return variants;
}

}  // namespace

std::unique_ptr<const Family> sm90_forward_family() {
  return std::make_unique<const Sm90Forward>();
}

}  // namespace attend::cuda
