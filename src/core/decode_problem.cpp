#include "core/decode_problem.hpp"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <utility>

#include "core/cache_checks.hpp"
#include "core/dtype_traits.hpp"
#include "core/problem_checks.hpp"
#include "core/score_options.hpp"

namespace attend::core {
namespace {

void check_dtype_of_q(const char* name, const Tensor& t, const Tensor& q) {
  if (t.dtype != q.dtype) {
    refuse("{}: dtype {}, allowed the dtype of q, {}", name, dtype_name(t.dtype), dtype_name(q.dtype));
  }
}

void check_cache_tensor(const char* name, const Tensor& t, const Tensor& q) {
  if (t.dtype != q.dtype && !is_quantized(t.dtype)) {
    refuse("{}: dtype {}, allowed the dtype of q, {}, or f8e4m3, i8", name, dtype_name(t.dtype), dtype_name(q.dtype));
  }
  check_tensor(name, t, q.device);
}

/// Checks q, k_cache, v_cache and o.
void check_tensors(const DecodeProblem& p, bool has_v) {
  const Tensor &q = p.q, &k = p.k, &v = p.v, &o = p.o;
  check_float_tensor("q", q, q.device);
  check_cache_tensor("k_cache", k, q);
  check_cache_tensor("v_cache", v, q);
  if (v.dtype != k.dtype) {
    refuse("v_cache: dtype {}, allowed the dtype of k_cache, {}", dtype_name(v.dtype), dtype_name(k.dtype));
  }
  check_float_tensor("o", o, q.device);
  check_dtype_of_q("o", o, q);
  check_head_dim("q", q, kMaxDecodeHeadDim);
  check_head_dim("o", o, kMaxHeadDim);
  check_shape("k_cache", k, {kAny, kAny, kAny, q.shape[3]}, "(cache rows or pages, num_heads_k, keys, head_dim of q)");
  check_heads("k_cache", k, q);
  if (has_v) {
    check_shape("v_cache", v, {k.shape[0], k.shape[1], k.shape[2], o.shape[3]},
                "(first three dimensions of k_cache, head_dim_v of o)");
  } else if (o.shape[3] > k.shape[3]) {
    refuse("o: head_dim_v {} without v_cache, allowed at most the head_dim of k_cache, {}", o.shape[3], k.shape[3]);
  }
  check_shape("o", o, {q.shape[0], q.shape[1], q.shape[2], kAny}, "(batch, num_heads_q and seqlen_q of q, head_dim_v)");
}

void resolve_rows(DecodeProblem& p, const DecodeParams& params) {
  p.cu_seqlens_q = params.cu_seqlens_q;
  if (p.cu_seqlens_q == nullptr) {
    for (const auto& [name, value] :
         {std::pair{"num_sequences", params.num_sequences}, {"max_seqlen_q", params.max_seqlen_q}}) {
      if (value != 0) refuse("{}: {} without cu_seqlens_q, allowed with it only", name, value);
    }
    p.num_sequences = p.q.shape[0];
    p.max_seqlen_q = p.q.shape[2];
    return;
  }
  if (p.q.shape[0] != 1) refuse("q: batch {} with cu_seqlens_q, allowed 1 (packed rows)", p.q.shape[0]);
  for (const auto& [name, value] :
       {std::pair{"num_sequences", params.num_sequences}, {"max_seqlen_q", params.max_seqlen_q}}) {
    if (value < 0 || value > kMaxLength) refuse("{}: {}, allowed 0 to {}", name, value, kMaxLength);
  }
  p.num_sequences = params.num_sequences;
  p.max_seqlen_q = params.max_seqlen_q;
  if (p.q.device.type != DeviceType::kCPU) return;
  check_row_offsets({.name = "cu_seqlens_q",
                     .offsets = p.cu_seqlens_q,
                     .num_sequences = p.num_sequences,
                     .most = p.max_seqlen_q,
                     .most_name = "max_seqlen_q",
                     .num_rows = p.q.shape[2],
                     .rows_name = "q"});
}

void check_tree(const DecodeProblem& p) {
  if (p.tree_mask != nullptr && p.max_seqlen_q > kMaxTreeRows) {
    refuse("tree_mask: max_seqlen_q {}, allowed at most {}", p.max_seqlen_q, kMaxTreeRows);
  }
}

void resolve_params(DecodeProblem& p, const DecodeParams& params) {
  check_scale(params.scale);
  const ScoreNumber& softcap = number_row(ScoreMod::kSoftcap);
  if (!softcap.is_allowed(params.softcap)) refuse("softcap: {}, allowed {}", params.softcap, softcap.allowed);
  check_window(params.window_left, params.window_right);
  p.scale = params.scale.value_or(1.0 / std::sqrt(static_cast<double>(p.head_dim)));
  p.transform_cap = params.softcap;
  p.window_left = std::min(params.window_left, kMaxLength);
  p.window_right = std::min(params.window_right, kMaxLength);
  p.tree_mask = params.tree_mask;
  if (params.causal && p.tree_mask == nullptr) p.window_right = 0;
  p.lse_base2 = params.lse_base2;
  check_tree(p);
  const OptionShapes shapes = {.device = p.q.device, .scores = {}, .heads = {p.num_sequences, p.num_heads_q, 1, 1}};
  const auto option = [&](ScoreMod mod, const std::optional<ConstTensor>& passed) -> std::optional<Tensor> {
    if (!passed) return std::nullopt;
    return resolved(tensor_row(mod), input_view(*passed), shapes);
  };
  p.alibi_slopes = option(ScoreMod::kAlibi, params.alibi_slopes);
  p.sinks = option(ScoreMod::kSinks, params.sinks);
}

void check_lse(const DecodeProblem& p) {
  check_tensor("lse", *p.lse, p.q.device);
  if (p.lse->dtype != DType::kF32) refuse("lse: dtype {}, allowed f32", dtype_name(p.lse->dtype));
  check_shape("lse", *p.lse, {p.q.shape[0], p.q.shape[1], p.q.shape[2], 1},
              "(batch, num_heads_q and seqlen_q of q, 1)");
}

void check_outputs_of(const DecodeProblem& p, bool has_v) {
  std::array<NamedTensor, 2> outputs = {{{"o", &p.o}, {"lse", p.lse ? &*p.lse : nullptr}}};
  std::optional<Tensor> k_descale, v_descale;
  if (p.cache.k_descale) k_descale = input_view(*p.cache.k_descale);
  if (p.cache.v_descale) v_descale = input_view(*p.cache.v_descale);
  std::array<NamedTensor, 7> inputs = {};
  std::size_t count = 0;
  const auto add = [&](const char* name, const Tensor& t) { inputs.at(count++) = {name, &t}; };
  add("q", p.q);
  add("k_cache", p.k);
  if (has_v) add("v_cache", p.v);
  if (p.alibi_slopes) add("alibi_slopes", *p.alibi_slopes);
  if (p.sinks) add("sinks", *p.sinks);
  if (k_descale) add("k_descale", *k_descale);
  if (v_descale) add("v_descale", *v_descale);
  check_outputs({outputs.data(), p.lse ? std::size_t{2} : std::size_t{1}}, {inputs.data(), count});
  if (p.lse && may_share_bytes(*p.lse, p.o)) refuse("lse: shares memory with o, allowed a separate buffer");
}

/// Returns the values of a cache without v_cache: the first columns of its keys.
Tensor first_columns(const Tensor& k, std::int64_t columns) {
  Tensor v = k;
  v.shape[3] = std::min(columns, k.shape[3]);
  return v;
}

}  // namespace

DecodeProblem make_decode_problem(const DecodeCall& call) {
  DecodeProblem p;
  p.q = input_view(call.q);
  p.k = input_view(call.k_cache);
  p.o = call.o;
  p.lse = call.lse;
  const bool has_v = call.v_cache.has_value();
  p.v = has_v ? input_view(*call.v_cache) : first_columns(p.k, p.o.shape[3]);
  check_tensors(p, has_v);
  p.num_heads_q = p.q.shape[1];
  p.num_heads_k = p.k.shape[1];
  p.head_dim = p.q.shape[3];
  p.head_dim_v = p.o.shape[3];
  resolve_rows(p, call.params);
  static_cast<CacheLayout&>(p) = make_cache_layout(call.cache, p.k, p.num_sequences);
  resolve_descales(p, p.k, has_v ? &p.v : nullptr, p.num_sequences, "q");
  resolve_params(p, call.params);
  if (p.lse) check_lse(p);
  check_outputs_of(p, has_v);
  if (p.q.device.type == DeviceType::kCPU && checks_caches()) check_cache_entries(p);
  return p;
}

}  // namespace attend::core
