// The kernel family sm80_backward. It computes float16 and bfloat16 gradients on the tensor cores of every GPU since
// Ampere, with all options.
#include <algorithm>
#include <array>

#include "cuda/launch/block_map.hpp"
#include "cuda/launch/captured_steps.hpp"
#include "cuda/launch/estimate.hpp"
#include "cuda/launch/families.hpp"
#include "cuda/launch/kernel_args.hpp"
#include "cuda/launch/row_logit_steps.hpp"
#include "cuda/launch/sm80_backward_variant.hpp"
#include "kernels/attention/saved_row.cuh"
#include "kernels/attention/work.cuh"

namespace attend::cuda {
namespace {

using core::Problem;

/// Returns the tunable members of the tile that begins at index `place` of the variant.
std::vector<Tunable> tunables_at(std::size_t place, const char* prefix) {
  static_assert(Path<&Sm80GradientKernel::tile>::place() == 0);
  return tunables_of<Sm80GradientKernel>(kSm80GradientFields, place, prefix);
}

/// Returns the tunable members of the tile for dq. Omits adds_dq, roles and parts, which only the kernel for dk and dv
/// uses.
std::vector<Tunable> tunables_of_queries() {
  using Variant = Sm80BackwardVariant;
  using Tile = Sm80BackwardTile;
  constexpr std::size_t kUnusedByQueries[] = {Path<&Variant::queries, &Tile::adds_dq>::place(),
                                              Path<&Variant::queries, &Tile::roles>::place(),
                                              Path<&Variant::queries, &Tile::parts>::place()};
  std::vector<Tunable> tunables = tunables_at(Path<&Variant::queries>::place(), "queries_");
  std::erase_if(tunables, [&](const Tunable& t) {
    return std::ranges::find(kUnusedByQueries, t.at) != std::end(kUnusedByQueries);
  });
  return tunables;
}

/// Returns the speed of the kernels in TFLOP/s, for the time estimate. The values follow measurements on an H200 with
/// large problems. The kernel of sm80_backward_unmodified.cuh reached 292, 330 and 268 at 64, 128 and 256 columns. With
/// only masks, two passes over the scores reached 183, 207 and 161. With only masks, one pass reached 225 and 220 at 64
/// and 128 columns. With a transform, two passes reached 122, 163 and 147. With dropout, two passes reached 97, 141 and
/// 132. The speeds with other options were not measured.
double tflops_of(const Sm80BackwardVariant& v) {
  if (v.keys.roles != kSm80General) return v.widest() <= 64 ? 290 : v.widest() <= 128 ? 325 : 265;
  double rate = v.widest() > 128 ? 160 : v.keys.adds_dq != 0 ? 220 : 190;
  if (v.has_rules()) rate *= v.widest() <= 64 ? 0.55 : 0.7;
  return v.copy_bytes < 4 ? 0.5 * rate : rate;
}

std::int64_t dq_rows(const Problem& p) {
  return sm80_dq_rows(p.q.shape[2], p.varlen ? p.num_sequences : 0);
}

constexpr std::int32_t kTaken = option::kAll | option::kCustomScore | option::kBlockMap;
constexpr int kPlainRows = 64;      // query rows per block of the first kernel
constexpr int kPlainThreads = 256;  // threads of the kernels without tiles, which process rows or keys one at a time

class Sm80Backward final : public Family {
 public:
  Sm80Backward()
      : Family("sm80_backward", "float16 and bfloat16 gradients on tensor cores since Ampere, every option") {
    has_forward = false;
    takes = kTaken | option::kCapturedGradients | option::kBlockMask;
    dtypes.bits = core::dtype_bit(DType::kF16) | core::dtype_bit(DType::kBF16);
  }

  [[nodiscard]] bool supports(const Arch& arch) const override { return arch.cp_async; }

  [[nodiscard]] Choice choose(const Problem& p, const DeviceInfo& device) const override {
    const Facts facts = facts_of(p, true);
    const int copy_bytes = facts.aligned != 0 ? 16 : is_aligned(p, 4) ? 4 : static_cast<int>(dtype_bytes(p.q.dtype));
    Sm80BackwardVariant v =
        sm80_backward_variant(facts, copy_bytes, device.max_smem_per_block, p.deterministic, p.dbias.has_value());
    if (p.dbias) v.set_dbias(element_of(p.dbias->dtype), p.dbias->shape[2] != p.max_seqlen_q);
    Choice choice = {.variant = v,
                     .why = v.keys.adds_dq != 0
                                ? "Ampere's tensor core instructions: one pass, with atomic additions to dq"
                                : "Ampere's tensor core instructions: two passes, one of them for dq"};
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
    add_captured_step(p, choice);
    add_row_logit_steps(p, choice);
    choice.seconds = estimated_seconds(p, device,
                                       {.tflops = tflops_of(v),
                                        .block_m = v.keys.owned(),
                                        .blocks = keys,
                                        .blocks_per_multiprocessor = v.keys.min_blocks,
                                        .num_steps = choice.num_steps}) +
                     captured_seconds(p, device);
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
    if (v.has_dbias != 0) {
      specs.push_back(v.dbias_over_rows != 0 ? plain_spec(v, arch, "dterms_reduce", "attention/dterms_reduce.cuh")
                                             : gradient_spec(v, arch, kTerms, "sm80_dterms", v.bias));
    }
    add_captured_spec(v, arch, specs);
    add_row_logit_specs(v, arch, specs);
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
    add_row_logit_region(p, workspace);
    return workspace;
  }

  void launch(const Launch& launch) const override {
    const Problem& p = launch.problem;
    BackwardOptionArgs args = backward_option_args(backward_args(p, launch.region(0), true), p);
    args.base.scale = made_up_scale(p, true);
    set_block_map(args.options, p);
    args.dterms_sums = launch.region<float>(1);
    args.dq_sums = launch.region<float>(2);
    args.dq_rows = dq_rows(p);
    set_row_logit_parts(args, launch);
    // If there is only one row, its stride is arbitrary. But the kernels compute addresses of padding rows with it, and
    // these addresses must be aligned.
    if (p.q.shape[2] == 1) args.base.q_stride.row = args.base.dout_stride.row = 0;
    if (p.k.shape[2] == 1) args.base.k_stride.row = args.base.v_stride.row = 0;
    run_with_captured_step(launch, args);
  }

  [[nodiscard]] std::span<const Tunable> tunables(const Variant& /*variant*/) const override {
    static const std::vector<Tunable> kAll = [] {
      std::vector<Tunable> all = tunables_at(Path<&Sm80BackwardVariant::keys>::place(), "keys_");
      const std::vector<Tunable> queries = tunables_of_queries();
      all.insert(all.end(), queries.begin(), queries.end());
      return all;
    }();
    return kAll;
  }

 protected:
  [[nodiscard]] std::optional<core::Lack> lack_of_its_own(const Problem& p,
                                                          const DeviceInfo& /*device*/) const override {
    // A block that owns keys loops over the query heads of a group and ends after the last head, so there must be at
    // least one.
    if (p.num_heads_q == 0) return core::Lack{"q", "heads", p.num_heads_q, "1 and more"};
    if (auto lack = captured_gradients_lack(p)) return lack;
    if (p.custom_score != nullptr && p.custom_score->traits.transforms &&
        p.dbias) {  // the kernel stores ds only before it multiplies ds by the derivative of the score function
      return core::Lack{nullptr, "dbias", "given", "none with a score function other than the score plus a term"};
    }
    return head_dim_lack(p, {}, kSm80BackwardLargestHeadDim, true);
  }

 private:
  /// Returns the spec of a kernel without tensor core tiles.
  [[nodiscard]] KernelSpec plain_spec(const Sm80BackwardVariant& v, const Arch& arch, const char* function,
                                      const char* source) const {
    return {.name = function,
            .source = source,
            .function = function,
            .args = BackwardOptionArgs::kTypeName,
            .config = constants_of(v, kTaken | option::kPart,
                                   {{"kThreads", kPlainThreads},
                                    {"kBlockM", kPlainRows},
                                    {"kSoleKey", v.sole_key != 0},
                                    {"kHasLseRounding", v.has_lse_rounding()},
                                    {"kFusesScores", true},
                                    {"kDbiasElement", enum_constant(v.dbias)}}),
            .arch = arch.target};
  }

  [[nodiscard]] KernelSpec finish_spec(const Sm80BackwardVariant& v, const Arch& arch) const {
    KernelSpec spec = plain_spec(v, arch, "sm80_backward_finish", "sm80/sm80_backward_finish.cuh");
    spec.config.push_back({"kIsUnmodified", v.keys.roles != kSm80General});
    return spec;
  }

  [[nodiscard]] KernelSpec gradient_spec(const Sm80BackwardVariant& v, const Arch& arch, Sm80Gradient gradient,
                                         const char* function, const Sm80BackwardTile& tile) const {
    const bool is_bias = gradient == Sm80Gradient::kTerms;
    const bool is_unmodified = tile.roles != kSm80General;
    const bool has_dk = gradient == Sm80Gradient::kKeysValues || gradient == Sm80Gradient::kKeys;
    const int smem_bytes = sm80_backward_smem_bytes(gradient, tile, v.head_dim, v.head_dim_v, v.has_lse_rounding());
    const Sm80GradientKernel kernel = {.tile = tile,
                                       .gradient = gradient,
                                       .sums_bias = has_dk && v.dbias_over_rows != 0,
                                       .copy_bytes = v.copy_bytes,
                                       .has_lse_rounding = v.has_lse_rounding(),
                                       .smem_bytes = smem_bytes};
    KernelSpec spec = {.name = function,
                       .source = is_bias         ? "sm80/sm80_dterms.cuh"
                                 : is_unmodified ? "sm80/sm80_backward_unmodified.cuh"
                                                 : "sm80/sm80_backward.cuh",
                       .function = is_bias         ? "sm80_dterms"
                                   : is_unmodified ? "sm80_backward_unmodified"
                                                   : "sm80_backward",
                       .args = BackwardOptionArgs::kTypeName,
                       .config = config_of<Sm80GradientKernel>(v, kTaken | option::kPart, kSm80GradientFields, kernel),
                       .arch = arch.target,
                       .dynamic_smem_bytes = static_cast<unsigned>(smem_bytes),
                       .min_blocks = tile.min_blocks};
    if (is_bias) spec.config.push_back({"kDbiasElement", enum_constant(v.dbias)});
    return spec;
  }
};

}  // namespace

std::unique_ptr<const Family> sm80_backward_family() {
  return std::make_unique<const Sm80Backward>();
}

}  // namespace attend::cuda
