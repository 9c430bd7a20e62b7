#include "cuda/serving/decode_variant.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "attend/error.hpp"
#include "core/dtype_traits.hpp"
#include "core/lack.hpp"
#include "cuda/launch/config_enums.hpp"
#include "cuda/launch/facts.hpp"

namespace attend::cuda {
namespace {

/// Floats of o that a thread has in registers: so many at most, and preferably.
constexpr std::int64_t kMostSums = 128, kGoodSums = 64;
constexpr int kMostStages = 4;  // DecodeLoader keeps 16 bits of each in a word of 64
constexpr int kMostStackNodes = 8;

[[nodiscard]] std::int64_t sums_of(const DecodeVariant& v) {
  return std::int64_t{decode_column_tiles(v.tile())} * v.rows / 2;
}

/// Rows and columns of the tile for this many packed rows.
void choose_rows(DecodeVariant& v, std::int64_t packed_rows) {
  v.rows = packed_rows <= 8 ? 8 : packed_rows <= 16 ? 16 : 32;
  const bool fills_parts_of_rows = packed_rows > v.rows && sums_of(v) <= kMostSums;
  if (sums_of(v) > kGoodSums && !fills_parts_of_rows && v.head_dim_v % 32 == 0) v.column_parts = 2;
  while (sums_of(v) > kMostSums && v.rows > 8) v.rows /= 2;
  if (sums_of(v) > kMostSums) v.column_parts = 2;
  if (packed_rows > v.rows && v.column_parts == 1) v.row_parts = 2;
}

/// As many slots as there is room for, then nodes of the stack.
void choose_slots(DecodeVariant& v, int max_smem) {
  v.stack_nodes = 0;
  for (v.stages = kMostStages; v.stages > 1; --v.stages) {
    if (decode_smem(v.tile()).bytes <= max_smem) break;
  }
  while (v.stack_nodes < kMostStackNodes) {
    DecodeVariant more = v;
    ++more.stack_nodes;
    if (decode_smem(more.tile()).bytes > max_smem) break;
    v = more;
  }
}

[[nodiscard]] bool is_aligned(const Tensor& t) {
  constexpr std::int64_t kBytes = 16;
  const std::int64_t bytes = dtype_bytes(t.dtype);
  const auto fits = [&](std::int64_t elements) { return elements * bytes % kBytes == 0; };
  return reinterpret_cast<std::uintptr_t>(t.data) % kBytes == 0 && fits(t.shape[3]) && fits(t.stride[0]) &&
         fits(t.stride[1]) && fits(t.stride[2]);
}

[[noreturn]] void refuse(const std::string& text) {
  throw Error(ErrorCode::kUnsupported, text);
}

DecodeVariant facts_of(const core::DecodeProblem& p) {
  if (p.q.dtype == DType::kF64) refuse("q: dtype f64, allowed on a GPU: f32, f16, bf16");
  DecodeVariant v = {.element = element_of(p.q.dtype)};
  if (p.k.dtype == DType::kF8E4M3) v.cache_element = CacheElement::kF8E4M3;
  if (p.k.dtype == DType::kI8) v.cache_element = CacheElement::kI8;
  v.head_dim = static_cast<std::int32_t>(p.head_dim);
  v.head_dim_v = static_cast<std::int32_t>(p.head_dim_v);
  const bool shares = p.k.data == p.v.data && p.k.stride == p.v.stride && p.head_dim_v <= p.head_dim;
  v.values_are_keys = shares ? 1 : 0;
  v.aligned = is_aligned(p.q) && is_aligned(p.k) && is_aligned(p.v) ? 1 : 0;
  return v;
}

}  // namespace

DecodeTile DecodeVariant::tile() const {
  const int q_bytes = element == ElementType::kF32 ? 4 : 2;
  return {.q_bytes = q_bytes,
          .cache_bytes = cache_element == CacheElement::kSame ? q_bytes : 1,
          .head_dim = head_dim,
          .head_dim_v = head_dim_v,
          .values_are_keys = values_are_keys,
          .rows = rows,
          .row_parts = row_parts,
          .column_parts = column_parts,
          .stages = stages,
          .stack_nodes = stack_nodes};
}

DecodeVariant decode_variant(const core::DecodeProblem& p, int max_smem) {
  DecodeVariant v = facts_of(p);
  choose_rows(v, std::max<std::int64_t>(1, p.heads_per_group() * p.max_seqlen_q));
  choose_slots(v, max_smem);
  if (decode_smem(v.tile()).bytes > max_smem) {
    refuse(fmt::format("q: head_dim {} with head_dim_v {} of {}, more than a GPU with {} bytes of shared memory takes",
                       p.head_dim, p.head_dim_v, dtype_name(p.q.dtype), max_smem));
  }
  return v;
}

KernelSpec decode_spec(const DecodeVariant& v, const char* arch) {
  return {.name = "decode",
          .source = "serving/decode.cuh",
          .function = "decode",
          .args = DecodeArgs::kTypeName,
          .config = {{"kElement", enum_constant(v.element)},
                     {"kCacheElement", enum_constant(v.cache_element)},
                     {"kHeadDim", v.head_dim},
                     {"kHeadDimV", v.head_dim_v},
                     {"kValuesAreKeys", v.values_are_keys != 0},
                     {"kAligned", v.aligned != 0},
                     {"kRows", v.rows},
                     {"kRowParts", v.row_parts},
                     {"kColumnParts", v.column_parts},
                     {"kStages", v.stages},
                     {"kStackNodes", v.stack_nodes},
                     {"kThreads", decode_threads(v.tile())}},
          .arch = arch,
          .dynamic_smem_bytes = static_cast<unsigned>(decode_smem(v.tile()).bytes)};
}

std::vector<KernelSpec> decode_specs(const Arch& arch) {
  std::vector<KernelSpec> specs;
  if (!arch.cp_async) return specs;
  for (const auto& [element, rows, head_dim, head_dim_v, shares] :
       {std::tuple{ElementType::kBF16, 8, 128, 128, 0}, std::tuple{ElementType::kF16, 16, 64, 64, 0},
        std::tuple{ElementType::kBF16, 32, 128, 128, 0}, std::tuple{ElementType::kBF16, 64, 128, 128, 0},
        std::tuple{ElementType::kBF16, 8, 72, 40, 0}, std::tuple{ElementType::kF32, 8, 128, 128, 0},
        std::tuple{ElementType::kBF16, 16, 256, 256, 0}, std::tuple{ElementType::kBF16, 16, 576, 512, 1}}) {
    DecodeVariant v = {.element = element, .head_dim = head_dim, .head_dim_v = head_dim_v, .values_are_keys = shares};
    choose_rows(v, rows);
    choose_slots(v, arch.max_smem_per_block);
    if (decode_smem(v.tile()).bytes <= arch.max_smem_per_block) specs.push_back(decode_spec(v, arch.target));
  }
  return specs;
}

}  // namespace attend::cuda
