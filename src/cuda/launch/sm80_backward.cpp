// sm80_backward: float16 and bfloat16 gradients on the tensor cores of every GPU since Ampere, every option.
#include <algorithm>
#include <array>

#include "cuda/launch/estimate.hpp"
#include "cuda/launch/families.hpp"
#include "cuda/launch/kernel_args.hpp"
#include "kernels/common/saved_row.cuh"
#include "kernels/common/work.cuh"
#include "kernels/sm80/sm80_backward_shape.cuh"

namespace attend::cuda {
namespace {

using core::Problem;

struct Sm80BackwardVariant : Facts {
  std::int32_t copy_bytes = 16;  ///< all addresses, strides and row lengths are multiples of it: 16, 4 or 2
  std::int32_t has_dbias = 0;
  ElementType dbias = ElementType::kF32;
  std::int32_t dbias_over_rows = 0;  ///< it is a sum over the rows
  Sm80BackwardTile keys = {};
  Sm80BackwardTile queries = {};
  Sm80BackwardTile bias = {};

  [[nodiscard]] int widest() const { return std::max(head_dim, head_dim_v); }
  /// dk and dv in one kernel: their sums fit into registers side by side, or warps of two kinds have one each.
  [[nodiscard]] bool keys_and_values() const { return widest() <= 128 || keys.roles != 0; }
};

constexpr std::size_t kTileInts = sizeof(Sm80BackwardTile) / sizeof(std::int32_t);
constexpr std::size_t kKeysAt = sizeof(Sm80BackwardVariant) / sizeof(std::int32_t) - 3 * kTileInts;
constexpr std::size_t kQueriesAt = kKeysAt + kTileInts;

/// Options that want registers of their own beside the scores.
bool has_rules(const Facts& facts) {
  return !facts.score().changes_nothing();
}

/// The first of `tiles` that fits into a block's shared memory; the last one always does.
template <std::size_t kCount>
Sm80BackwardTile first_that_fits(const Facts& facts, Sm80Gradient gradient, int max_smem,
                                 const Sm80BackwardTile (&tiles)[kCount]) {
  return *std::find_if(std::begin(tiles), std::end(tiles) - 1, [&](const Sm80BackwardTile& tile) {
    return sm80_backward_smem_bytes(gradient, tile, facts.head_dim, facts.head_dim_v, facts.has_lse_rounding()) <=
           max_smem;
  });
}

/// In one pass without options between s and p (sm80_backward_plain.cuh), if it fits; else with no warps.
Sm80BackwardTile plain_tile(const Facts& facts, int max_smem) {
  const int widest = std::max(facts.head_dim, facts.head_dim_v);
  const auto make = [](int warps, int streamed, int step, int min_blocks, int roles, int parts) {
    return Sm80BackwardTile{warps, 2, streamed, step, min_blocks, 1, roles, parts};
  };
  if (widest <= 64) return first_that_fits(facts, Sm80Gradient::kKeysValues, max_smem, {make(4, 64, 32, 2, 1, 1), {}});
  const int parts = widest <= 128 ? 1 : 2;
  return first_that_fits(facts, Sm80Gradient::kKeysValues, max_smem,
                         {make(8, 64, 64, 1, 2, parts), make(8, 32, 32, 1, 2, parts), {}});
}

constexpr int kMidSmem = 128 << 10;  // sm_86, sm_89 and sm_120 have less; for the last ptxas wants more registers

/// As many scores at a time as registers allow beside the sums: two groups of 16 rows a warp, where they do.
/// @param adds_dq  in one pass with dq, where there is room for ds
Sm80BackwardTile keys_tile(const Facts& facts, int max_smem, bool adds_dq) {
  const int widest = std::max(facts.head_dim, facts.head_dim_v);
  const int step = facts.score().transforms && facts.score().drops ? 16 : 32;  // both keep some of a score
  const auto make = [](int warps, int row_groups, int streamed, int of_step, int min_blocks, bool adds = false) {
    return Sm80BackwardTile{warps, row_groups, streamed, of_step, min_blocks, adds ? 1 : 0, 0, 1};
  };
  if (widest <= 64) {
    if (has_rules(facts)) return make(8, 1, 64, 32, 1, adds_dq);
    return make(4, 2, 64, max_smem < kMidSmem ? 16 : 32, 2, adds_dq);
  }
  if (widest <= 128) {
    return first_that_fits(
        facts, Sm80Gradient::kKeysValues, max_smem,
        {make(8, 1, 64, has_rules(facts) ? step : 64, 1, adds_dq), make(8, 1, 32, step, 1), make(4, 1, 32, 32, 1)});
  }
  return first_that_fits(facts, Sm80Gradient::kKeys, max_smem,
                         {make(8, 1, 32, 32, 1), make(4, 1, 32, 32, 1), make(4, 1, 16, 16, 1)});
}

Sm80BackwardTile queries_tile(const Facts& facts, int max_smem) {
  const int widest = std::max(facts.head_dim, facts.head_dim_v);
  if (widest > 128) return keys_tile(facts, max_smem, false);
  if (widest <= 64)
    return {
        .warps = 4, .row_groups = 2, .streamed = 64, .step = 32, .min_blocks = 2, .adds_dq = 0, .roles = 0, .parts = 1};
  return {.warps = 4,
          .row_groups = 2,
          .streamed = 32,
          .step = has_rules(facts) || max_smem < kMidSmem ? 16 : 32,
          .min_blocks = 2,
          .adds_dq = 0,
          .roles = 0,
          .parts = 1};
}

Sm80BackwardTile bias_tile(const Facts& facts) {
  const bool is_wide = std::max(facts.head_dim, facts.head_dim_v) > 128;
  return {.warps = is_wide ? 4 : 8,
          .row_groups = 1,
          .streamed = 32,
          .step = 32,
          .min_blocks = 1,
          .adds_dq = 0,
          .roles = 0,
          .parts = 1};
}

Sm80BackwardVariant variant_of(const Facts& facts, int copy_bytes, int max_smem, bool is_deterministic,
                               bool has_dbias = false) {
  Sm80BackwardVariant v = {facts};
  v.copy_bytes = copy_bytes;
  const bool is_plain = !has_rules(facts) && !has_dbias && copy_bytes == 16 && !is_deterministic;
  if (is_plain) v.keys = plain_tile(facts, max_smem);
  if (v.keys.warps == 0) v.keys = keys_tile(facts, max_smem, !is_deterministic);
  if (v.keys.adds_dq == 0) v.queries = queries_tile(facts, max_smem);
  return v;
}

void set_dbias(Sm80BackwardVariant& v, ElementType dbias, bool over_rows) {
  v.has_dbias = 1;
  v.dbias = dbias;
  v.dbias_over_rows = over_rows ? 1 : 0;
  if (!over_rows) v.bias = bias_tile(v);
}

/// Of an H200 at large sizes, measured: of sm80_backward_plain.cuh 292, 330 and 268 (64, 128 and 256 columns); else,
/// with masks only, in one pass 225 and 220 (64 and 128), in two 183, 207 and 161 (256); softcap in two 122, 163 and
/// 147, dropout 97, 141 and 132. What other rules leave is an assumption.
double tflops_of(const Sm80BackwardVariant& v) {
  if (v.keys.roles != 0) return v.widest() <= 64 ? 290 : v.widest() <= 128 ? 325 : 265;
  double rate = v.widest() > 128 ? 160 : v.keys.adds_dq != 0 ? 220 : 190;
  if (has_rules(v)) rate *= v.widest() <= 64 ? 0.55 : 0.7;
  return v.copy_bytes < 4 ? 0.5 * rate : rate;
}

std::int64_t dq_rows(const Problem& p) {
  return sm80_dq_rows(p.q.shape[2], p.varlen ? p.num_sequences : 0);
}

constexpr int kPlainRows = 64;      // of a block of the first kernel
constexpr int kPlainThreads = 256;  // of the kernels that go through rows, or keys, one by one

class Sm80Backward final : public Family {
 public:
  Sm80Backward()
      : Family("sm80_backward", "float16 and bfloat16 gradients on tensor cores since Ampere, every option") {
    has_forward = false;
    takes = option::kAll;
    dtypes.bits = core::dtype_bit(DType::kF16) | core::dtype_bit(DType::kBF16);
  }

  [[nodiscard]] bool supports(const Arch& arch) const override { return arch.cp_async; }

  [[nodiscard]] Choice choose(const Problem& p, const DeviceInfo& device) const override {
    const Facts facts = facts_of(p, true);
    const int copy_bytes = facts.aligned != 0 ? 16 : is_aligned(p, 4) ? 4 : 2;
    Sm80BackwardVariant v =
        variant_of(facts, copy_bytes, device.max_smem_per_block, p.deterministic, p.dbias.has_value());
    if (p.dbias) set_dbias(v, element_of(p.dbias->dtype), p.dbias->shape[2] != p.max_seqlen_q);
    Choice choice = {.variant = v,
                     .why = v.keys.adds_dq != 0
                                ? "Ampere's tensor core instructions: one pass, which adds to dq in no fixed order"
                                : "Ampere's tensor core instructions: two passes, dq by itself"};
    lay_out(p, device, choice);
    return choice;
  }

  void lay_out(const Problem& p, const DeviceInfo& device, Choice& choice) const override {
    const auto v = choice.variant.as<Sm80BackwardVariant>();
    const std::int64_t query_heads = p.num_sequences * p.num_heads_q;
    const std::int64_t keys = num_tiles(p.max_seqlen_k, v.keys.owned()) * p.num_sequences * p.num_heads_k;
    choice.num_steps = 0;
    choice.add_step({.blocks = num_tiles(p.max_seqlen_q, kPlainRows) * query_heads});
    choice.add_step({.blocks = keys});
    if (!v.keys_and_values()) choice.add_step({.blocks = keys});
    const int rows = v.keys.adds_dq != 0 ? kPlainRows : v.queries.owned();
    choice.add_step({.blocks = num_tiles(p.max_seqlen_q, rows) * query_heads});
    if (v.has_dbias != 0) {
      const std::int64_t matrices = p.dbias->shape[0] * p.dbias->shape[1];
      choice.add_step({.blocks = v.dbias_over_rows != 0 ? matrices * num_tiles(p.max_seqlen_k, kPlainThreads)
                                                        : matrices * num_tiles(p.max_seqlen_q, v.bias.owned()) *
                                                              num_tiles(p.max_seqlen_k, v.bias.streamed)});
    }
    choice.seconds = estimated_seconds(p, device,
                                       {.tflops = tflops_of(v),
                                        .block_m = v.keys.owned(),
                                        .blocks = keys,
                                        .blocks_per_multiprocessor = v.keys.min_blocks,
                                        .num_steps = choice.num_steps});
  }

  [[nodiscard]] std::vector<KernelSpec> kernels(const Variant& variant, const Arch& arch) const override {
    using enum Sm80Gradient;
    const auto v = variant.as<Sm80BackwardVariant>();
    std::vector<KernelSpec> specs = {plain_spec(v, arch, "simt_backward_prepare", "simt/simt_prepare.cuh")};
    if (v.keys_and_values()) {
      specs.push_back(gradient_spec(v, arch, kKeysValues, "sm80_backward_keys", v.keys));
    } else {
      specs.push_back(gradient_spec(v, arch, kKeys, "sm80_backward_keys", v.keys));
      specs.push_back(gradient_spec(v, arch, kValues, "sm80_backward_values", v.keys));
    }
    specs.push_back(v.keys.adds_dq != 0 ? finish_spec(v, arch)
                                        : gradient_spec(v, arch, kQueries, "sm80_backward_queries", v.queries));
    if (v.has_dbias == 0) return specs;
    specs.push_back(v.dbias_over_rows != 0 ? plain_spec(v, arch, "dbias_reduce", "common/dbias_reduce.cuh")
                                           : gradient_spec(v, arch, kBias, "sm80_dbias", v.bias));
    return specs;
  }

  [[nodiscard]] Workspace workspace(const Problem& p, const Choice& choice) const override {
    const std::int64_t heads = p.q.shape[0] * p.num_heads_q;
    const auto v = choice.variant.as<Sm80BackwardVariant>();
    const bool over_rows = v.dbias_over_rows != 0;
    const bool adds_dq = v.keys.adds_dq != 0;
    Workspace workspace;
    workspace.add({"saved rows", heads * p.q.shape[2] * std::int64_t{sizeof(SavedRow)}});
    workspace.add({"sums of dbias", over_rows ? heads * p.max_seqlen_k * std::int64_t{sizeof(float)} : 0});
    workspace.add({.name = "sums of dq",
                   .bytes = adds_dq ? heads * dq_rows(p) * sm80_depth(v.head_dim) * std::int64_t{sizeof(float)} : 0,
                   .zeroed = true});
    return workspace;
  }

  void launch(const Launch& launch) const override {
    const Problem& p = launch.problem;
    BackwardOptionArgs args = backward_option_args(backward_args(p, launch.region(0), true), p);
    args.base.scale = made_up_scale(p, true);
    args.dbias_sums = launch.region<float>(1);
    args.dq_sums = launch.region<float>(2);
    args.dq_rows = dq_rows(p);
    // Nobody looks at the stride of a single row; but rows that do not exist have addresses, and those are aligned too.
    if (p.q.shape[2] == 1) args.base.q_stride.row = args.base.dout_stride.row = 0;
    if (p.k.shape[2] == 1) args.base.k_stride.row = args.base.v_stride.row = 0;
    launch.run_all(args);
  }

  [[nodiscard]] std::vector<Variant> examples(const Arch& arch) const override;

  [[nodiscard]] std::span<const Tunable> tunables(const Variant& /*variant*/) const override {
    static const std::vector<Tunable> kAll = tunables_of(
        {{kKeysAt,
          {"keys_warps", "keys_row_groups", "keys_streamed", "keys_step", "keys_min_blocks", "keys_adds_dq",
           "keys_roles", "keys_parts"}},
         {kQueriesAt,
          {"queries_warps", "queries_row_groups", "queries_streamed", "queries_step", "queries_min_blocks"}}});
    return kAll;
  }

 protected:
  [[nodiscard]] std::optional<core::Lack> lack_of_its_own(const Problem& p,
                                                          const DeviceInfo& /*device*/) const override {
    // A block of keys goes from query head to query head, and ends behind the last of its group.
    if (p.num_heads_q == 0) return core::Lack{"q", "heads", p.num_heads_q, "1 and more"};
    return head_dim_lack(p, {}, kSm80BackwardLargestHeadDim, true);
  }

 private:
  /// A kernel without tiles on tensor cores.
  [[nodiscard]] KernelSpec plain_spec(const Sm80BackwardVariant& v, const Arch& arch, const char* function,
                                      const char* source) const {
    return {.name = function,
            .source = source,
            .function = function,
            .args = BackwardOptionArgs::kTypeName,
            .config = constants_of(v, takes | option::kPart,
                                   {{"kThreads", kPlainThreads},
                                    {"kBlockM", kPlainRows},
                                    {"kSoleKey", v.sole_key != 0},
                                    {"kHasLseRounding", v.has_lse_rounding()},
                                    {"kFusesScores", true},
                                    {"kDbiasElement", element_constant(v.dbias)}}),
            .arch = arch.target};
  }

  [[nodiscard]] KernelSpec finish_spec(const Sm80BackwardVariant& v, const Arch& arch) const {
    KernelSpec spec = plain_spec(v, arch, "sm80_backward_finish", "sm80/sm80_backward_finish.cuh");
    spec.config.push_back({"kIsPlain", v.keys.roles != 0});
    return spec;
  }

  [[nodiscard]] KernelSpec gradient_spec(const Sm80BackwardVariant& v, const Arch& arch, Sm80Gradient gradient,
                                         const char* function, const Sm80BackwardTile& tile) const {
    static constexpr const char* kNames[] = {"kKeysValues", "kKeys", "kValues", "kQueries", "kBias"};
    const bool is_bias = gradient == Sm80Gradient::kBias;
    const bool is_plain = tile.roles != 0;
    const bool has_dk = gradient == Sm80Gradient::kKeysValues || gradient == Sm80Gradient::kKeys;
    const int smem_bytes = sm80_backward_smem_bytes(gradient, tile, v.head_dim, v.head_dim_v, v.has_lse_rounding());
    KernelSpec spec = {
        .name = function,
        .source = is_bias    ? "sm80/sm80_dbias.cuh"
                  : is_plain ? "sm80/sm80_backward_plain.cuh"
                             : "sm80/sm80_backward.cuh",
        .function = is_bias    ? "sm80_dbias"
                    : is_plain ? "sm80_backward_plain"
                               : "sm80_backward",
        .args = BackwardOptionArgs::kTypeName,
        .config = constants_of(v, takes | option::kPart,
                               {{"kGradient", EnumConstant{"Sm80Gradient", kNames[static_cast<std::size_t>(gradient)]}},
                                {"kThreads", tile.threads()},
                                {"kWarps", tile.warps},
                                {"kRowGroups", tile.row_groups},
                                {"kStreamed", tile.streamed},
                                {"kStep", tile.step},
                                {"kRoles", tile.roles},
                                {"kParts", tile.parts},
                                {"kSumsBias", has_dk && v.dbias_over_rows != 0},
                                {"kAddsDq", gradient == Sm80Gradient::kKeysValues && tile.adds_dq != 0},
                                {"kCopyBytes", v.copy_bytes},
                                {"kHasLseRounding", v.has_lse_rounding()},
                                {"kSmemBytes", smem_bytes}}),
        .arch = arch.target,
        .dynamic_smem_bytes = static_cast<unsigned>(smem_bytes),
        .min_blocks = tile.min_blocks};
    if (is_bias) spec.config.push_back({"kDbiasElement", element_constant(v.dbias)});
    return spec;
  }
};

/// Each head_dim at which tiles change, both types, every mask; in one pass and in two; each option alone, and all that
/// go together; both kinds of dbias; negated scores; tensors that are not aligned.
std::vector<Variant> Sm80Backward::examples(const Arch& arch) const {
  using enum ElementType;
  using enum MaskKind;
  constexpr std::int32_t kEvery =
      option::kSoftcap | option::kAlibi | option::kBias | option::kBoolMask | option::kDropout;
  struct Case {
    ElementType element;
    MaskKind mask;
    std::int32_t options = 0;
    ElementType bias = kF32;
    bool negate = false;
    int copy_bytes = 16;
    std::optional<bool> dbias_over_rows = {};
  };
  static constexpr Case kEverywhere[] = {{kBF16, kFull},
                                         {kF16, kCausal, 0, kF32, true},
                                         {kF16, kCausal, option::kBias, kF16, false, 4, true},
                                         {kBF16, kWindow, option::kBias, kF16, false, 4, false},
                                         {kBF16, kWindow, kEvery, kF32, true, 16, false},
                                         {kF16, kWindow, kEvery, kF16, false, 2, true}};
  static constexpr Case kAlone[] = {{kBF16, kCausal, option::kVarlen},
                                    {kF16, kWindow},
                                    {kBF16, kCausal, option::kSoftcap},
                                    {kBF16, kCausal, option::kAlibi},
                                    {kBF16, kFull, option::kAlibi | option::kDropout},
                                    {kBF16, kCausal, option::kDropout},
                                    {kF16, kWindow, option::kDropout | option::kPhiloxState},
                                    {kF16, kFull, option::kBoolMask},
                                    {kBF16, kFull, option::kBias, kBF16, false, 16, false}};
  std::vector<Variant> variants;
  const auto add = [&](const Case& c, int head_dim, int head_dim_v, bool is_deterministic) {
    const Facts facts = {.element = c.element,
                         .head_dim = head_dim,
                         .head_dim_v = head_dim_v,
                         .mask = c.mask,
                         .options = c.options,
                         .bias = c.bias,
                         .is_backward = 1,
                         .negate_scores = c.negate,
                         .aligned = c.copy_bytes == 16};
    Sm80BackwardVariant v = variant_of(facts, c.copy_bytes, arch.max_smem_per_block, is_deterministic);
    if (c.dbias_over_rows) set_dbias(v, c.bias, *c.dbias_over_rows);
    if (std::find(variants.begin(), variants.end(), Variant(v)) == variants.end()) variants.emplace_back(v);
  };
  for (const int head_dim : {64, 128, 256}) {
    for (const bool is_deterministic : {false, true}) {
      for (const Case& c : kEverywhere) add(c, head_dim - (c.copy_bytes == 2 ? 3 : 0), head_dim, is_deterministic);
    }
  }
  for (const Case& c : kAlone) {
    add(c, 64, 64, false);
    add(c, 128, 128, false);
    add(c, 128, 128, true);
  }
  add({kBF16, kCausal}, 96, 96, false);
  add({kF16, kFull}, 24, 40, false);
  add({kF16, kCausal}, 192, 128, false);
  add({kBF16, kFull}, 8, 200, true);
  for (const MaskKind mask : {kFull, kWindow}) {
    add({kF16, mask, option::kDropout | option::kPhiloxState | option::kVarlen}, 64, 40, false);
    auto v = variants.back().as<Sm80BackwardVariant>();
    v.sole_key = 1;
    variants.back() = v;
  }
  return variants;
}

}  // namespace

std::unique_ptr<const Family> sm80_backward_family() {
  return std::make_unique<const Sm80Backward>();
}

}  // namespace attend::cuda
