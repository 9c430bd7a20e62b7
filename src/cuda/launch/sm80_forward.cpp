// sm80_forward: float16 and bfloat16 forward on the tensor cores of every GPU since Ampere, every option.
#include <algorithm>
#include <optional>
#include <string>

#include "cuda/launch/estimate.hpp"
#include "cuda/launch/families.hpp"
#include "cuda/launch/kernel_args.hpp"
#include "kernels/common/long_sum.cuh"
#include "kernels/common/work.cuh"
#include "kernels/sm80/sm80_forward_shape.cuh"

namespace attend::cuda {
namespace {

using core::Problem;

struct Sm80ForwardVariant : Facts {
  std::int32_t copy_bytes = 16;  ///< all addresses, strides and row lengths are multiples of it: 16, 4 or 2
  Sm80ForwardTile tile = {};

  [[nodiscard]] int smem_bytes() const { return sm80_forward_smem_bytes(tile, head_dim, head_dim_v); }
  [[nodiscard]] int widest() const { return std::max(head_dim, head_dim_v); }
};

constexpr std::size_t kTileAt = sizeof(Facts) / sizeof(std::int32_t) + 1;  // among the variant's ints

/// Options that want registers of their own beside the scores.
bool has_rules(const Facts& facts) {
  return !facts.score().changes_nothing();
}

/// The first of `tiles` that fits into a block's shared memory; the last one always does.
template <std::size_t kCount>
Sm80ForwardTile first_that_fits(const Facts& facts, int max_smem, const Sm80ForwardTile (&tiles)[kCount]) {
  const auto* fitting = std::find_if(std::begin(tiles), std::end(tiles) - 1, [&](const Sm80ForwardTile& tile) {
    return sm80_forward_smem_bytes(tile, facts.head_dim, facts.head_dim_v) <= max_smem;
  });
  return *fitting;
}

Sm80ForwardTile tile_of(const Facts& facts, int warps, int row_groups, int block_n, bool q_in_registers, int min_blocks,
                        bool puts_aside = false) {
  const int widest = std::max(facts.head_dim, facts.head_dim_v);
  const bool speculates = !has_rules(facts) && !puts_aside;
  return {.warps = warps,
          .row_groups = row_groups,
          .block_n = block_n,
          .q_in_registers = q_in_registers,
          .column_parts = ceil_div(facts.head_dim_v, kSm80MostColumns),
          .min_blocks = min_blocks,
          .puts_aside = puts_aside,
          .speculates = speculates,
          .fuses = speculates && widest <= 64,
          .parks = speculates && widest > 64 && row_groups == 2,
          .trails = 0,
          .splits = 1};
}

/// p v of a tile beside the exponents of the next one.
Sm80ForwardTile trailing(Sm80ForwardTile tile) {
  tile.trails = 1;
  tile.fuses = 0;
  tile.parks = 0;
  return tile;
}

/// Two warps for the same 32 rows: the products wait for shared memory least.
Sm80ForwardTile split_tile(const Facts& facts) {
  Sm80ForwardTile tile = trailing(tile_of(facts, 8, 2, 64, false, 1));
  tile.splits = 2;
  return tile;
}

/// Tall tiles: two groups of 16 rows a warp as long as their sums leave registers for the scores, and two blocks on a
/// multiprocessor, or one of eight warps, so that one's softmax runs under another's products.
Sm80ForwardTile tall_tile(const Facts& facts, int max_smem) {
  constexpr int kTwoOf32Keys = 138 << 10;  // two blocks of 128 rows of 128 columns and 32 keys, on a multiprocessor
  constexpr int kTwoOf64Keys = 203 << 10;  // likewise with 64 keys
  constexpr int kTwoOf64Rows = 197 << 10;  // two blocks of 64 rows of 256 columns and 32 keys
  const int widest = std::max(facts.head_dim, facts.head_dim_v);
  const int keys = has_rules(facts) ? 32 : 64;  // rules want the registers of the other scores
  const bool is_plain = !has_rules(facts);
  // With less shared memory, as on sm_120, it would spill; and there nobody has timed it.
  if (widest > 32 && widest <= 64 && is_plain && max_smem >= kTwoOf32Keys) {
    return trailing(tile_of(facts, 4, 2, 64, true, 2));
  }
  if (widest <= 64) return tile_of(facts, 4, 2, keys, false, 2);
  if (widest <= 128 && max_smem >= kTwoOf64Keys) return tile_of(facts, 4, 2, keys, false, 2);
  if (widest <= 128 && is_plain && max_smem >= kTwoOf32Keys) return trailing(tile_of(facts, 4, 2, 32, false, 2));
  if (widest <= 128 && max_smem >= kTwoOf32Keys) return tile_of(facts, 4, 2, 32, false, 2);
  if (widest <= 128) return tile_of(facts, 8, 1, keys, true, 1);
  // Two blocks do not wait for each other as the warps of one do, and q in registers spares a ninth of all ldmatrix.
  const bool is_wide = is_plain && widest > 192 && widest <= kSm80MostColumns;
  const bool splits = is_wide && sm80_columns_v(facts.head_dim_v, 1) % (2 * kPanelColumns) == 0;
  if (splits && sm80_forward_smem_bytes(split_tile(facts), facts.head_dim, facts.head_dim_v) <= max_smem) {
    return split_tile(facts);
  }
  if (is_wide && max_smem >= kTwoOf64Rows) return tile_of(facts, 4, 1, 32, true, 2);
  return first_that_fits(
      facts, max_smem,
      {tile_of(facts, 8, 1, keys, false, 1), tile_of(facts, 8, 1, 32, false, 1), tile_of(facts, 4, 1, 32, false, 1),
       tile_of(facts, 4, 1, 16, false, 1), tile_of(facts, 2, 1, 16, false, 1)});
}

constexpr std::int64_t kShortSeqlen = 768;

/// For short causal sequences: of a tall tile masks would hide half, and few of them run at once. Tall ones lose at 512
/// keys on an H200 (16384 rows of 2048 columns in all), not at 2048; where they begin to win has not been looked for.
std::optional<Sm80ForwardTile> short_tile(const Facts& facts, int max_smem) {
  constexpr int kFourOf64Rows = 170 << 10;  // four blocks of 64 rows of 64 columns and 64 keys, on a multiprocessor
  constexpr int kTwoOf64Rows = 197 << 10;   // two blocks of 64 rows of 256 columns and 32 keys
  const int widest = std::max(facts.head_dim, facts.head_dim_v);
  if (facts.mask != MaskKind::kCausal || has_rules(facts)) return std::nullopt;
  if (widest > 32 && widest <= 64 && max_smem >= kFourOf64Rows) {
    Sm80ForwardTile tile = tile_of(facts, 4, 1, 64, true, 4);
    tile.fuses = 0;  // four blocks leave no registers for it
    return tile;
  }
  if (widest > 192 && widest <= kSm80MostColumns && max_smem >= kTwoOf64Rows) return tile_of(facts, 4, 1, 32, true, 2);
  return std::nullopt;
}

/// For heads with few rows: warps whose rows do not exist only load.
Sm80ForwardTile low_tile(const Facts& facts, int max_smem) {
  const int keys = has_rules(facts) ? 32 : 64;
  const bool q_in_registers = std::max(facts.head_dim, facts.head_dim_v) <= 128;
  return first_that_fits(facts, max_smem,
                         {tile_of(facts, 4, 1, keys, q_in_registers, 1), tile_of(facts, 4, 1, 32, q_in_registers, 1),
                          tile_of(facts, 4, 1, 16, false, 1), tile_of(facts, 2, 1, 16, false, 1)});
}

/// For sums over so many keys that they are put aside: a place for them in shared memory.
Sm80ForwardTile long_tile(const Facts& facts, int max_smem) {
  const int keys = has_rules(facts) ? 32 : 64;
  return first_that_fits(facts, max_smem,
                         {tile_of(facts, 8, 1, keys, false, 1, true), tile_of(facts, 4, 1, keys, false, 1, true),
                          tile_of(facts, 4, 1, 32, false, 1, true), tile_of(facts, 2, 1, 16, false, 1, true)});
}

Sm80ForwardVariant with(const Facts& facts, int copy_bytes, const Sm80ForwardTile& tile) {
  Sm80ForwardVariant v = {facts};
  v.copy_bytes = copy_bytes;
  v.tile = tile;
  return v;
}

/// Of an H200: plain as measured at 2048 keys with 64, 128 and 256 columns, of the options dropout at 64 and 128. The
/// others are assumptions.
double tflops_of(const Sm80ForwardVariant& v) {
  const int widest = v.widest();
  double rate = widest <= 64 ? 330 : widest <= 128 ? 370 : widest <= 192 ? 250 : widest <= 256 ? 330 : 120;
  if (has_rules(v)) rate = widest <= 64 ? 117 : widest <= 128 ? 180 : widest <= 256 ? 125 : 60;
  if (v.copy_bytes < 4) rate *= 0.5;
  const bool is_low = widest <= 128 ? v.tile.row_groups == 1 && v.tile.min_blocks < 4
                                    : widest > 192 && v.tile.warps * v.tile.min_blocks < 8;
  return is_low ? 0.65 * rate : rate;
}

constexpr int kWidestLongSum = 256;  // head_dim beyond which o finds no place aside in 99 KB

class Sm80Forward final : public Family {
 public:
  Sm80Forward() : Family("sm80_forward", "float16 and bfloat16 on tensor cores since Ampere, every option") {
    has_backward = false;
    takes = option::kAll;
    dtypes.bits = core::dtype_bit(DType::kF16) | core::dtype_bit(DType::kBF16);
  }

  [[nodiscard]] bool supports(const Arch& arch) const override { return arch.cp_async; }

  [[nodiscard]] Choice choose(const Problem& p, const DeviceInfo& device) const override {
    const Facts facts = facts_of(p, true);
    const int copy_bytes = facts.aligned != 0 ? 16 : is_aligned(p, 4) ? 4 : 2;
    const int smem = device.max_smem_per_block;
    if (puts_sums_aside(facts.element, p.max_seqlen_k)) {
      Choice choice = {.variant = with(facts, copy_bytes, long_tile(facts, smem)),
                       .why = "Ampere's tensor core instructions: very many keys, so sums in pieces"};
      lay_out(p, device, choice);
      return choice;
    }
    Choice choice = {
        .variant = with(facts, copy_bytes, tall_tile(facts, smem)),
        .why = "Ampere's tensor core instructions: row tiles as tall as registers and shared memory allow"};
    const auto low_if_short = short_tile(facts, smem);
    if (low_if_short && std::max(p.max_seqlen_q, p.max_seqlen_k) <= kShortSeqlen) {
      choice = {
          .variant = with(facts, copy_bytes, *low_if_short),
          .why = "Ampere's tensor core instructions: short and causal, so tiles of 64 rows, which masks cut least"};
    }
    lay_out(p, device, choice);
    Choice other = {.variant = with(facts, copy_bytes, low_tile(facts, smem)),
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
    const Sm80ForwardTile& tile = v.tile;
    return {{.name = name,
             .source = "sm80/sm80_forward.cuh",
             .function = name,
             .args = ForwardOptionArgs::kTypeName,
             .config = constants_of(v, takes | option::kPart,
                                    {{"kThreads", tile.threads()},
                                     {"kWarps", tile.warps},
                                     {"kRowGroups", tile.row_groups},
                                     {"kBlockM", tile.block_m()},
                                     {"kBlockN", tile.block_n},
                                     {"kQInRegisters", tile.q_in_registers != 0},
                                     {"kColumnParts", tile.column_parts},
                                     {"kPutsAside", tile.puts_aside != 0},
                                     {"kSpeculates", tile.speculates != 0},
                                     {"kFuses", tile.fuses != 0},
                                     {"kParks", tile.parks != 0},
                                     {"kTrails", tile.trails != 0},
                                     {"kSplits", tile.splits},
                                     {"kCopyBytes", v.copy_bytes},
                                     {"kSmemBytes", v.smem_bytes()}}),
             .arch = arch.target,
             .dynamic_smem_bytes = static_cast<unsigned>(v.smem_bytes()),
             .min_blocks = tile.min_blocks}};
  }

  [[nodiscard]] Workspace workspace(const Problem& /*p*/, const Choice& /*choice*/) const override { return {}; }

  void launch(const Launch& launch) const override {
    const Problem& p = launch.problem;
    ForwardOptionArgs args = {forward_args(p, nullptr, true), option_args_of(p)};
    args.base.scale = made_up_scale(p, true);
    // Nobody looks at the stride of a single row; but rows that do not exist have addresses, and those are aligned too.
    if (p.q.shape[2] == 1) args.base.q_stride.row = 0;
    if (p.k.shape[2] == 1) args.base.k_stride.row = args.base.v_stride.row = 0;
    launch.run(0, args);
  }

  [[nodiscard]] std::vector<Variant> examples(const Arch& arch) const override;

  [[nodiscard]] std::span<const Tunable> tunables(const Variant& /*variant*/) const override {
    static const std::vector<Tunable> kAll =
        tunables_of({{kTileAt,
                      {"warps", "row_groups", "block_n", "q_in_registers", "column_parts", "min_blocks", "puts_aside",
                       "speculates", "fuses", "parks", "trails", "splits"}}});
    return kAll;
  }

 protected:
  [[nodiscard]] std::optional<core::Lack> lack_of_its_own(const Problem& p,
                                                          const DeviceInfo& /*device*/) const override {
    if (auto lack = head_dim_lack(p, {}, kSm80LargestHeadDim, true)) return lack;
    const Facts facts = facts_of(p, true);
    const int widest = std::max(facts.head_dim, facts.head_dim_v);
    if (widest > kWidestLongSum && puts_sums_aside(facts.element, p.max_seqlen_k)) {
      return core::Lack{p.head_dim == widest ? "q" : "v", "head_dim", widest, "1 to 256 where keys are very many"};
    }
    return std::nullopt;
  }
};

/// Each head_dim at which tiles change, both types, every mask; each option alone, and all that go together; negated
/// scores; tensors that are not aligned; few rows.
std::vector<Variant> Sm80Forward::examples(const Arch& arch) const {
  using enum ElementType;
  using enum MaskKind;
  constexpr std::int32_t kEvery =
      option::kSoftcap | option::kAlibi | option::kBias | option::kBoolMask | option::kDropout;
  std::vector<Variant> variants;
  const auto add = [&](Facts facts, bool is_low = false, int copy_bytes = 16) {
    facts.aligned = copy_bytes == 16 ? 1 : 0;
    const auto tile = is_low ? low_tile(facts, arch.max_smem_per_block) : tall_tile(facts, arch.max_smem_per_block);
    const Variant v = with(facts, copy_bytes, tile);
    if (std::find(variants.begin(), variants.end(), v) == variants.end()) variants.push_back(v);
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
  for (const int head_dim : {64, 128, 192, 256, 512}) {
    for (const bool is_low : {false, true}) {
      if (is_low && (head_dim == 64 || head_dim == 192)) continue;  // as with 128 and 256
      add(facts(kBF16, head_dim, head_dim, kFull), is_low);
      add(facts(kF16, head_dim, head_dim, kCausal, 0, kF32, true), is_low);
      add(facts(kBF16, head_dim, head_dim, kWindow, kEvery, kF32, true), is_low);
      add(facts(kBF16, head_dim, head_dim, kWindow, option::kBias, kF16), is_low, 4);
      add(facts(kF16, head_dim - 1, head_dim - 3, kFull), is_low, 2);
    }
  }
  for (const int head_dim : {128, 256}) {
    add(facts(kBF16, head_dim, head_dim, kCausal));
    add(facts(kF16, head_dim, head_dim, kWindow));
    for (const std::int32_t bit :
         {option::kSoftcap, option::kAlibi, option::kBias, option::kBoolMask, option::kDropout, option::kVarlen}) {
      add(facts(kBF16, head_dim, head_dim, bit == option::kBias ? kFull : kCausal, bit, kBF16));
    }
    add(facts(kF16, head_dim, head_dim, kCausal, kEvery, kF16), false, 4);
    add(facts(kF16, head_dim, head_dim, kWindow, option::kDropout | option::kPhiloxState));
    for (const std::int32_t options : {0, kEvery}) {
      const Facts f = facts(kF16, head_dim, head_dim, kCausal, options);
      variants.emplace_back(with(f, 16, long_tile(f, arch.max_smem_per_block)));
    }
  }
  for (const int head_dim : {64, 512}) {
    add(facts(kBF16, head_dim, head_dim, kCausal, option::kSoftcap));
    add(facts(kBF16, head_dim, head_dim, kCausal, option::kBoolMask), true);
  }
  for (const int head_dim : {64, 256}) {
    for (const Facts& f : {facts(kBF16, head_dim, head_dim, kCausal),
                           facts(kF16, head_dim - 1, head_dim - 3, kCausal, option::kVarlen, kF32, true)}) {
      const auto tile = short_tile(f, arch.max_smem_per_block);
      if (tile) variants.emplace_back(with(f, head_dim == f.head_dim ? 16 : 2, *tile));
    }
  }
  add(facts(kBF16, 96, 96, kCausal));
  add(facts(kBF16, 192, 128, kCausal));
  add(facts(kF16, 40, 304, kFull));
  add(facts(kBF16, 8, 8, kCausal, option::kVarlen));
  return variants;
}

}  // namespace

std::unique_ptr<const Family> sm80_forward_family() {
  return std::make_unique<const Sm80Forward>();
}

}  // namespace attend::cuda
