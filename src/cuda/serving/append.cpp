#include "cuda/serving/append.hpp"

#include <algorithm>
#include <limits>

#include "core/append_checks.hpp"
#include "core/cache_checks.hpp"
#include "core/problem_checks.hpp"
#include "cuda/launch/rows_args.hpp"
#include "cuda/serving/cache_args.hpp"
#include "cuda/serving/device_of.hpp"
#include "cuda/serving/host_copies.hpp"
#include "cuda/serving/kernel_cache.hpp"
#include "kernels/serving/append_args.cuh"

namespace attend::cuda {
namespace {

/// Compile-time parameters of the append kernel.
struct Variant {
  std::int32_t columns;  ///< largest number of elements in a row
};

constexpr Variant kVariants[] = {{kNarrowAppendRow}, {kWideAppendRow}};
static_assert(kWideAppendRow >= core::kMaxDecodeHeadDim);

[[nodiscard]] constexpr std::int64_t ceil_div(std::int64_t value, std::int64_t divisor) {
  return (value + divisor - 1) / divisor;
}

Variant variant_of(const core::AppendProblem& p) {
  const std::int64_t columns = std::max(p.k.shape[3], p.v ? p.v->shape[3] : 0);
  return {columns <= kNarrowAppendRow ? kNarrowAppendRow : kWideAppendRow};
}

KernelSpec spec_of(const Variant& variant, const char* arch) {
  return {.name = "append",
          .source = "serving/append.cuh",
          .function = "append",
          .args = AppendArgs::kTypeName,
          .config = {{"kThreads", kAppendThreads}, {"kColumns", variant.columns}},
          .arch = arch,
          // Limits the kernel to 64 registers. Without the limit, the compiler moves loads forward and uses 128
          // registers.
          .min_blocks = 8};
}

TableArgs table_args(const Tensor& t) {
  return {
      .data = t.data, .row_stride = t.stride[2], .element = static_cast<uint32>(stored_element(t.dtype)), .unused = 0};
}

AppendPart part_of(const Tensor& from, const Tensor& to, const core::SequenceRows& rows,
                   const std::optional<Tensor>& norm) {
  AppendPart part = {};
  part.from = rows_args(from);
  part.to = rows_args(to);
  part.rows = {.offsets = rows.offsets,
               .num_sequences = rows.num_sequences,
               .seqlen = rows.seqlen,
               .num_tokens = from.shape[0] * from.shape[2]};
  if (norm) part.norm = table_args(*norm);
  part.cols = static_cast<uint32>(from.shape[3]);
  part.num_heads = static_cast<uint32>(from.shape[1]);
  return part;
}

AppendArgs args_of(const core::AppendProblem& p) {
  static_assert(static_cast<uint32>(QueryPositions::kLast) == kQueriesLast);
  static_assert(static_cast<uint32>(QueryPositions::kFirst) == kQueriesFirst);
  AppendArgs args = {};
  args.cache = cache_args(p);
  AppendPart& keys = args.parts[kAppendKeys];
  AppendPart& values = args.parts[kAppendValues];
  AppendPart& queries = args.parts[kAppendQueries];
  keys = part_of(p.k, p.k_cache, p.new_rows, p.k_norm);
  keys.descale = args.cache.k_descale;
  if (p.v) values = part_of(*p.v, *p.v_cache, p.new_rows, {});
  values.descale = args.cache.v_descale;
  if (p.q) queries = part_of(*p.q, *p.q_out, p.q_rows, p.q_norm);
  args.slot_mapping = p.slot_mapping;
  args.positions = p.positions;
  args.query_positions = static_cast<uint32>(p.query_positions);
  args.norm_eps = p.norm_eps;
  if (!p.rotary) return args;
  keys.rotates = queries.rotates = 1;
  args.rotary_seqlens = p.rotary->seqlens;
  args.cos = table_args(core::input_view(p.rotary->cos));
  args.sin = table_args(core::input_view(p.rotary->sin));
  args.max_positions = p.max_positions();
  args.first_column = static_cast<uint32>(p.rotary->first_column);
  args.rotary_dim = static_cast<uint32>(p.rotary_dim());
  args.is_interleaved = p.rotary->interleaved ? 1U : 0U;
  return args;
}

/// Chooses how many heads a warp processes, stores the number in `args` and returns the grid. If there are more rows
/// than warps on the GPU, a warp processes several heads of a token. It then computes the token's position in the cache
/// and its row of the rotary tables only once.
Dim3 deal_out(AppendArgs& args, const DeviceInfo& device) {
  // The y dimension of a grid has at most 65535 blocks. Up to three tensors share them, and each block has a group of
  // heads.
  constexpr std::int64_t kWarpsOfMultiprocessor = 32, kMostHeads = 16, kMostGroups = 20000;
  constexpr std::int64_t kMostBlocks = std::numeric_limits<std::int32_t>::max(), kTokensOfBlock = kAppendThreads / 32;
  std::int64_t rows = 0, tokens = 0, most_heads = 0;
  for (const AppendPart& part : args.parts) {
    rows += part.rows.num_tokens * part.num_heads;
    most_heads = std::max<std::int64_t>(most_heads, part.num_heads);
    if (part.num_heads != 0) tokens = std::max<std::int64_t>(tokens, part.rows.num_tokens);
  }
  const std::int64_t warps = 4 * kWarpsOfMultiprocessor * std::max(1, device.num_multiprocessors);
  const std::int64_t heads =
      std::max(std::clamp<std::int64_t>(rows / warps, 1, kMostHeads), ceil_div(most_heads, kMostGroups));
  args.heads_of_warp = static_cast<uint32>(heads);
  unsigned all_groups = 0;
  for (AppendPart& part : args.parts) {
    part.groups = part.rows.num_tokens == 0 ? 0 : static_cast<uint32>(ceil_div(part.num_heads, heads));
    all_groups += part.groups;
  }
  const std::int64_t blocks = std::min(kMostBlocks, ceil_div(tokens, kTokensOfBlock));
  return {.x = static_cast<unsigned>(blocks), .y = all_groups};
}

void check_offsets(const char* name, const core::SequenceRows& rows, const char* most, const Tensor& t,
                   const char* tensor) {
  if (rows.offsets == nullptr) return;
  core::check_row_offsets({.name = name,
                           .offsets = rows.offsets,
                           .num_sequences = rows.num_sequences,
                           .most = rows.seqlen,
                           .most_name = most,
                           .num_rows = t.shape[2],
                           .rows_name = tensor});
}

/// If ATTEND_CHECK=1 is set, copies the index arrays to the host and checks them in the same way as for a call on the
/// CPU.
void check_entries(const core::AppendProblem& p, StreamHandle stream) {
  if (!core::checks_caches()) return;
  core::AppendProblem on_host = p;
  HostCopies copies(stream);
  copies.replace_arrays(on_host, p.num_sequences());
  const std::int64_t tokens = p.k.shape[0] * p.k.shape[2];
  on_host.new_rows.offsets = copies.of(p.new_rows.offsets, p.num_sequences() + 1);
  on_host.q_rows.offsets = copies.of(p.q_rows.offsets, p.num_sequences() + 1);
  on_host.slot_mapping = copies.of(p.slot_mapping, tokens);
  on_host.positions = copies.of(p.positions, tokens);
  if (p.rotary) on_host.rotary->seqlens = copies.of(p.rotary->seqlens, p.num_sequences());
  copies.wait();
  check_offsets("cu_seqlens_new", on_host.new_rows, "max_seqlen_new", p.k, "k");
  if (p.q) check_offsets("cu_seqlens_q", on_host.q_rows, "max_seqlen_q", *p.q, "q");
  core::check_query_rows(on_host);
  core::check_append_entries(on_host);
}

}  // namespace

void append(const core::AppendProblem& p, Stream stream) {
  // Never destroyed, because launches may continue during process exit.
  static auto* kernels = new KernelCache<Variant>();
  const DeviceInfo& device = device_of("k", p.k);
  const ContextGuard guard(device.index);
  auto* const handle = static_cast<StreamHandle>(stream);
  check_entries(p, handle);
  AppendArgs args = args_of(p);
  const Dim3 grid = deal_out(args, device);
  if (grid.x == 0 || grid.y == 0) return;
  const LoadedVariant& kernel =
      kernels->get(device, variant_of(p), [&](const Arch& arch) { return spec_of(variant_of(p), arch.target); });
  kernel.launch(grid, &args, handle);
}

std::vector<KernelSpec> append_specs(const char* arch) {
  std::vector<KernelSpec> specs;
  for (const Variant& variant : kVariants) specs.push_back(spec_of(variant, arch));
  return specs;
}

}  // namespace attend::cuda
