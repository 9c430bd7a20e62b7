#include "cuda/serving/long_rows.hpp"

#include <algorithm>
#include <bit>
#include <limits>

#include "core/dtype_traits.hpp"
#include "cuda/launch/kernel_args.hpp"
#include "cuda/launch/tensor_maps.hpp"
#include "kernels/attention/work.cuh"

namespace attend::cuda {
namespace {

// Kernels add numbers of rows, keys and windows as ints, so none of these numbers may exceed this limit.
constexpr std::int64_t kMostLength = std::int64_t{1} << 30;

/// Returns the problem as a forward call with packed sequences. Its k and v are the cache, in which the keys of a
/// sequence may be divided into pages.
core::Problem as_packed(const core::DecodeProblem& p) {
  core::Problem packed;
  packed.q = p.q;
  packed.k = p.k;
  packed.v = p.v;
  packed.o = p.o;
  packed.lse = p.lse;
  packed.alibi_slopes = p.alibi_slopes;
  packed.sinks = p.sinks;
  packed.varlen = Varlen{.cu_seqlens_q = p.cu_seqlens_q,
                         .num_sequences = p.num_sequences,
                         .max_seqlen_q = p.max_seqlen_q,
                         .max_seqlen_k = p.capacity};
  packed.num_sequences = p.num_sequences;
  packed.num_heads_q = p.num_heads_q;
  packed.num_heads_k = p.num_heads_k;
  packed.max_seqlen_q = p.max_seqlen_q;
  packed.max_seqlen_k = p.capacity;
  packed.head_dim = p.head_dim;
  packed.head_dim_v = p.head_dim_v;
  packed.scale = p.scale;
  packed.transform_cap = p.transform_cap;
  packed.window_left = p.window_left;
  packed.window_right = p.window_right;
  return packed;
}

/// Returns the number of keys per page, or 0 if all keys of a sequence are contiguous.
std::int64_t page_size(const core::DecodeProblem& p) {
  return p.cache.page_table ? p.block_size : 0;
}

constexpr std::int32_t kTaken = option::kAll | option::kRing;

}  // namespace

std::int64_t most_decode_rows(LongRows by, std::int64_t num_heads_q) {
  constexpr std::int64_t kLeastBlocks = 16, kBlockRows = 128;
  if (by == LongRows::kDecode) return std::numeric_limits<std::int64_t>::max();
  if (by == LongRows::kSm90Forward) return core::kMaxTreeRows;
  // Row tiles per sequence.
  const std::int64_t tiles = num_tiles(kLeastBlocks, std::max<std::int64_t>(num_heads_q, 1));
  return std::max<std::int64_t>(core::kMaxTreeRows, (tiles - 1) * kBlockRows);
}

std::optional<Sm90ForwardVariant> long_rows_variant(const core::DecodeProblem& p, const Arch& arch,
                                                    std::int64_t most_rows) {
  constexpr double kLargestCap = 1e18;
  const bool is_long = p.max_seqlen_q > most_rows && p.tree_mask == nullptr;
  if (!is_long || !arch.wgmma || !core::is_narrow(p.q.dtype) || p.k.dtype != p.q.dtype) return std::nullopt;
  if (std::max(p.head_dim, p.head_dim_v) > kSm90LargestHeadDim || p.head_dim % 8 != 0 || p.head_dim_v % 8 != 0) {
    return std::nullopt;
  }
  if (std::max(p.capacity, p.q.shape[2]) > kMostLength || p.transform_cap > kLargestCap) return std::nullopt;
  if (p.sinks && !core::dtype_traits(p.sinks->dtype).element) return std::nullopt;
  const core::Problem packed = as_packed(p);
  if (tensor_map_lack(packed)) return std::nullopt;
  return sm90_forward_cached(facts_of(packed, true), p.capacity, page_size(p));
}

KernelSpec long_rows_spec(const Sm90ForwardVariant& variant, const char* arch) {
  return sm90_forward_spec(variant, kTaken, arch);
}

std::uint32_t long_rows_blocks(const core::DecodeProblem& p, const Sm90ForwardVariant& variant,
                               int num_multiprocessors) {
  // Each sequence has at most one partial tile. The number of tiles is therefore at most the number of full tiles plus
  // the number of sequences.
  const std::int64_t rows = p.cu_seqlens_q != nullptr ? p.q.shape[2] : p.num_sequences * p.max_seqlen_q;
  const std::int64_t tiles = num_tiles(rows, variant.tile.block_m()) + p.num_sequences;
  return static_cast<std::uint32_t>(std::min<std::int64_t>(tiles * p.num_heads_q, num_multiprocessors));
}

std::size_t long_rows_scratch_bytes(const Sm90ForwardVariant& variant, std::uint32_t blocks) {
  if (variant.puts_aside == 0) return 0;
  return static_cast<std::size_t>(sm90_aside_bytes(blocks, variant.tile.consumers, variant.head_dim_v));
}

Sm90CachedArgs long_rows_args(const core::DecodeProblem& p, const Sm90ForwardVariant& variant, const AddedKeys& added,
                              std::int64_t most_rows, uint32* counters, void* scratch) {
  const core::Problem packed = as_packed(p);
  const int keys = sm90_forward_box_rows(variant, page_size(p));
  Sm90CachedArgs args = {};
  args.q_map = row_map(p.q, variant.tile.block_m(), p.q.data);
  if (variant.has_boxes != 0) {
    args.k_map = row_map(p.k, keys, p.q.data);
    args.v_map = row_map(p.v, keys, p.q.data);
    args.box_shift = static_cast<uint32>(std::bit_width(static_cast<unsigned>(keys)) - 1);
  }
  args.o_map = row_map(p.o, kSm90ConsumerRows, p.q.data);
  args.next_tile = counters;
  args.blocks_done = counters + 1;
  args.scale_log2 = sm90_folded_scale(packed);
  args.base = forward_args(packed, scratch, true);
  args.base.scale = made_up_scale(packed, true);
  args.options = option_args_of(packed);
  args.cache = cache_args(p, added);
  args.least_rows = static_cast<uint32>(most_rows + 1);
  args.lse_base2 = p.lse_base2 ? 1 : 0;
  return args;
}

std::vector<KernelSpec> long_rows_specs(const Arch& arch) {
  std::vector<KernelSpec> specs;
  if (!arch.wgmma) return specs;
  constexpr std::int64_t kCapacity = 4096, kManyKeys = std::int64_t{1} << 20;
  const auto add = [&](std::int32_t head_dim, std::int32_t head_dim_v, MaskKind mask, std::int32_t options,
                       std::int64_t capacity, std::int64_t page_size = 0) {
    const Facts facts = {.element = ElementType::kBF16,
                         .head_dim = head_dim,
                         .head_dim_v = head_dim_v,
                         .mask = mask,
                         .options = option::kVarlen | options};
    specs.push_back(long_rows_spec(sm90_forward_cached(facts, capacity, page_size), arch.target));
  };
  for (const std::int32_t head_dim : {64, 80, 96, 128, 192, 256}) {
    add(head_dim, head_dim, MaskKind::kCausal, 0, kCapacity);
    add(head_dim, head_dim, MaskKind::kWindow, option::kTransform | option::kAlibi, kCapacity, 16);
    add(head_dim, head_dim, MaskKind::kCausal, 0, kCapacity, 1);
    add(head_dim, head_dim, MaskKind::kCausal, 0, kCapacity, 16);
  }
  add(128, 128, MaskKind::kFull, 0, kCapacity);
  add(192, 128, MaskKind::kCausal, 0, kCapacity);
  add(64, 64, MaskKind::kWindow, option::bit_of(ScoreMod::kSinks), kCapacity);
  add(128, 128, MaskKind::kCausal, option::kTransform, kCapacity);
  add(128, 128, MaskKind::kCausal, option::kAlibi, kManyKeys);
  return specs;
}

}  // namespace attend::cuda
