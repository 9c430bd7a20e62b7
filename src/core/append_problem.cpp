#include "core/append_problem.hpp"

#include <array>
#include <cmath>
#include <span>
#include <utility>

#include "core/append_checks.hpp"
#include "core/cache_checks.hpp"
#include "core/decode_problem.hpp"
#include "core/dtype_traits.hpp"
#include "core/problem_checks.hpp"

namespace attend::core {
namespace {

constexpr const char* kOwner = "k";  // the argument whose device is the device of the call

void check_rows(const char* name, const Tensor& t, Device device) {
  if (!has_simd_loops(t.dtype)) refuse("{}: dtype {}, allowed f32, f16, bf16", name, dtype_name(t.dtype));
  check_tensor(name, t, device, kOwner);
}

void check_cache(const char* name, const Tensor& t, Device device) {
  if (!has_simd_loops(t.dtype) && !is_quantized(t.dtype)) {
    refuse("{}: dtype {}, allowed f32, f16, bf16, f8e4m3, i8", name, dtype_name(t.dtype));
  }
  check_tensor(name, t, device, kOwner);
}

/// Checks a tensor of norm weights or a rotary table.
Tensor checked_numbers(const char* name, const ConstTensor& passed, Device device) {
  const Tensor t = input_view(passed);
  if (!has_simd_loops(t.dtype) && t.dtype != DType::kF64) {
    refuse("{}: dtype {}, allowed f32, f16, bf16, f64", name, dtype_name(t.dtype));
  }
  check_tensor(name, t, device, kOwner);
  return t;
}

/// Checks that the optional tensors `name` and `with` are either both given or both absent.
void check_pair(const char* name, bool is_given, const char* with, bool with_is_given) {
  if (is_given && !with_is_given) refuse("{}: given without {}, allowed with it only", name, with);
  if (with_is_given && !is_given) refuse("{}: given without {}, allowed with it only", with, name);
}

void resolve_caches(AppendProblem& p, const AppendCall& call) {
  const Tensor& k = p.k;
  const Tensor& k_cache = p.k_cache;
  check_rows("k", k, k.device);
  check_cache("k_cache", k_cache, k.device);
  check_head_dim("k", k, kMaxDecodeHeadDim);
  check_shape("k_cache", k_cache, {kAny, k.shape[1], kAny, k.shape[3]},
              "(cache rows or pages, num_heads_k of k, keys, head_dim of k)");
  check_pair("v", call.v.has_value(), "v_cache", call.v_cache.has_value());
  if (!call.v) return;
  p.v = input_view(*call.v);
  p.v_cache = call.v_cache;
  check_rows("v", *p.v, k.device);
  check_cache("v_cache", *p.v_cache, k.device);
  check_head_dim("v", *p.v, kMaxHeadDim);
  check_shape("v", *p.v, {k.shape[0], k.shape[1], k.shape[2], kAny}, "(first three dimensions of k, head_dim_v)");
  check_shape("v_cache", *p.v_cache, {k_cache.shape[0], k_cache.shape[1], k_cache.shape[2], p.v->shape[3]},
              "(first three dimensions of k_cache, head_dim_v of v)");
}

/// Names of the three arguments that describe the rows of one tensor: the tensor, the offsets of its sequences, and the
/// length of the longest sequence.
struct RowArguments {
  const char* tensor;
  const char* offsets;
  const char* most;
};

/// Completes `rows`, the description of the rows of `t`. With offsets, rows are packed, and each sequence has at most
/// rows.seqlen rows. Without offsets, `t` is dense.
SequenceRows resolved_rows(const RowArguments& name, const Tensor& t, SequenceRows rows) {
  if (rows.offsets == nullptr) {
    if (rows.seqlen != 0) refuse("{}: {} without {}, allowed with it only", name.most, rows.seqlen, name.offsets);
    rows.seqlen = t.shape[2];
    return rows;
  }
  if (t.shape[0] != 1) {
    refuse("{}: batch {} with {}, allowed 1 (packed rows)", name.tensor, t.shape[0], name.offsets);
  }
  for (const auto& [what, value] : {std::pair{"num_sequences", rows.num_sequences}, {name.most, rows.seqlen}}) {
    if (value < 0 || value > kMaxLength) refuse("{}: {}, allowed 0 to {}", what, value, kMaxLength);
  }
  if (t.device.type == DeviceType::kCPU) {
    check_row_offsets({.name = name.offsets,
                       .offsets = rows.offsets,
                       .num_sequences = rows.num_sequences,
                       .most = rows.seqlen,
                       .most_name = name.most,
                       .num_rows = t.shape[2],
                       .rows_name = name.tensor});
  }
  return rows;
}

void resolve_new_rows(AppendProblem& p, const AppendCall& call) {
  const bool packed = call.cu_seqlens_new != nullptr;
  if (!packed && call.num_sequences != 0) {
    refuse("num_sequences: {} without cu_seqlens_new, allowed with it only", call.num_sequences);
  }
  p.new_rows = resolved_rows({"k", "cu_seqlens_new", "max_seqlen_new"}, p.k,
                             {call.cu_seqlens_new, packed ? call.num_sequences : p.k.shape[0], call.max_seqlen_new});
  p.slot_mapping = call.slot_mapping;
  p.positions = call.positions;
  // If the call has slots, only the lengths of the cache index are used.
  const bool by_slot = p.slot_mapping != nullptr;
  static_cast<CacheLayout&>(p) = make_cache_layout(call.cache, p.k_cache, by_slot ? 0 : p.num_sequences());
  resolve_descales(p, p.k_cache, p.v_cache ? &*p.v_cache : nullptr, p.num_sequences(), kOwner);
  if (!by_slot && call.cache.seqlens_k == nullptr && p.num_sequences() > 0) {
    refuse("seqlens_k: absent without slot_mapping, allowed the number of keys of each sequence");
  }
}

void refuse_queries(const char* why, const AppendCall& call) {
  for (const auto& [name, is_given] : {std::pair{"q", call.q.has_value()},
                                       {"q_out", call.q_out.has_value()},
                                       {"cu_seqlens_q", call.cu_seqlens_q != nullptr},
                                       {"max_seqlen_q", call.max_seqlen_q != 0}}) {
    if (is_given) refuse("{}: {}", name, why);
  }
}

/// The query rows of an append call, which normalises and rotates them and writes the results to q_out.
struct QueryCall {
  ConstTensor q;
  std::optional<Tensor> q_out;  ///< absent if the backend allocates the memory
  const std::int32_t* cu_seqlens_q;
  std::int64_t max_seqlen_q;
};

std::optional<QueryCall> query_call(const AppendCall& call, const DecodeCall* decode) {
  if (decode != nullptr) {
    refuse_queries("given in append, allowed unset if decode has the query rows", call);
    if (!call.rotary && !call.q_norm) return std::nullopt;
    return QueryCall{decode->q, std::nullopt, decode->params.cu_seqlens_q, decode->params.max_seqlen_q};
  }
  if (call.q && !call.q_out) refuse("q: given without q_out, allowed with it only");
  if (call.q) return QueryCall{*call.q, call.q_out, call.cu_seqlens_q, call.max_seqlen_q};
  refuse_queries("given without q, allowed with it only", call);
  if (call.q_norm) refuse("q_norm: given without q, allowed with it only");
  return std::nullopt;
}

void resolve_queries(AppendProblem& p, const QueryCall& call, QueryPositions positions) {
  p.q = input_view(call.q);
  const Tensor& q = *p.q;
  check_rows("q", q, p.k.device);
  check_shape("q", q, {kAny, kAny, kAny, p.k.shape[3]}, "(batch, num_heads_q, seqlen_q, head_dim of k)");
  p.q_out = call.q_out ? *call.q_out : Tensor::bhsd<void>(nullptr, q.dtype, q.shape, q.device);
  if (call.q_out) check_rows("q_out", *p.q_out, p.k.device);
  check_shape("q_out", *p.q_out, q.shape, "the shape of q");
  if (p.q_out->dtype != q.dtype) {
    refuse("q_out: dtype {}, allowed the dtype of q, {}", dtype_name(p.q_out->dtype), dtype_name(q.dtype));
  }
  if (call.cu_seqlens_q == nullptr && q.shape[0] != p.num_sequences()) {
    refuse("q: batch {}, allowed the number of sequences, {}", q.shape[0], p.num_sequences());
  }
  p.q_rows = resolved_rows({"q", "cu_seqlens_q", "max_seqlen_q"}, q,
                           {call.cu_seqlens_q, p.num_sequences(), call.max_seqlen_q});
  p.query_positions = positions;
}

void resolve_rotary(AppendProblem& p, const AppendCall& call) {
  if (!call.rotary) return;
  const Rotary& rotary = *call.rotary;
  const Tensor cos = checked_numbers("rotary.cos", rotary.cos, p.k.device);
  const Tensor sin = checked_numbers("rotary.sin", rotary.sin, p.k.device);
  const std::int64_t head_dim = p.k.shape[3];
  check_shape("rotary.cos", cos, {1, 1, kAny, kAny}, "(1, 1, max_positions, rotary_dim / 2)");
  check_shape("rotary.sin", sin, cos.shape, "the shape of rotary.cos");
  if (cos.shape[2] < 1) refuse("rotary.cos: 0 positions, allowed >= 1");
  if (rotary.first_column < 0 || rotary.first_column > head_dim) {
    refuse("rotary.first_column: {}, allowed 0 to head_dim = {}", rotary.first_column, head_dim);
  }
  if (2 * cos.shape[3] > head_dim - rotary.first_column) {
    refuse("rotary.cos: rotary_dim {}, allowed at most head_dim - first_column = {}", 2 * cos.shape[3],
           head_dim - rotary.first_column);
  }
  if (p.positions != nullptr && rotary.seqlens != nullptr) {
    refuse("rotary.seqlens: given with positions, allowed one of them");
  }
  const bool by_length = p.positions == nullptr && rotary.seqlens == nullptr;
  if (by_length && call.cache.seqlens_k == nullptr && p.num_sequences() > 0) {
    refuse(
        "positions: absent with slot_mapping and rotary, allowed to be absent with seqlens_k or rotary.seqlens only");
  }
  if (cos.shape[3] > 0) p.rotary = rotary;
}

void resolve_norms(AppendProblem& p, const AppendCall& call) {
  const auto weights = [&](const char* name, const std::optional<ConstTensor>& passed) -> std::optional<Tensor> {
    if (!passed) return std::nullopt;
    const Tensor t = checked_numbers(name, *passed, p.k.device);
    check_shape(name, t, {1, 1, 1, p.k.shape[3]}, "(1, 1, 1, head_dim)");
    return t;
  };
  p.q_norm = weights("q_norm", call.q_norm);
  p.k_norm = weights("k_norm", call.k_norm);
  p.norm_eps = static_cast<float>(call.norm_eps);
  if (!(std::isfinite(p.norm_eps) && call.norm_eps >= 0)) {
    refuse("norm_eps: {}, allowed finite numbers >= 0", call.norm_eps);
  }
}

/// A list of tensors of a problem, with their names.
class TensorList {
 public:
  void add(const char* name, const Tensor& t) {
    tensors_.at(count_) = t;
    all_.at(count_) = {name, &tensors_.at(count_)};
    ++count_;
  }
  void add(const char* name, const std::optional<Tensor>& t) {
    if (t) add(name, *t);
  }
  [[nodiscard]] std::span<const NamedTensor> all() const { return {all_.data(), count_}; }

 private:
  std::array<Tensor, 8> tensors_ = {};
  std::array<NamedTensor, 8> all_ = {};
  std::size_t count_ = 0;
};

void check_apart(const NamedTensor& out, const NamedTensor& other) {
  if (!may_share_bytes(*out.tensor, *other.tensor)) return;
  refuse("{}: shares memory with {}, allowed a separate buffer", out.name, other.name);
}

/// Checks that no output shares memory with an input. Two exceptions are allowed: q_out may be q, and the caches may
/// overlap each other.
void check_written(const AppendProblem& p) {
  TensorList inputs, caches;
  inputs.add("k", p.k);
  inputs.add("v", p.v);
  if (p.rotary) inputs.add("rotary.cos", input_view(p.rotary->cos));
  if (p.rotary) inputs.add("rotary.sin", input_view(p.rotary->sin));
  inputs.add("q_norm", p.q_norm);
  inputs.add("k_norm", p.k_norm);
  if (p.cache.k_descale) inputs.add("k_descale", input_view(*p.cache.k_descale));
  if (p.cache.v_descale) inputs.add("v_descale", input_view(*p.cache.v_descale));
  caches.add("k_cache", p.k_cache);
  caches.add("v_cache", p.v_cache);
  for (const NamedTensor& cache : caches.all()) {
    check_output_strides(cache.name, *cache.tensor);
    for (const NamedTensor& input : inputs.all()) check_apart(cache, input);
    if (p.q) check_apart(cache, {"q", &*p.q});
  }
  if (p.v_cache && p.v_cache->numel() != 0 && p.v_cache->data == p.k_cache.data) {
    refuse("v_cache: has the address of k_cache, allowed a separate buffer");
  }
  if (!p.q_out || p.q_out->data == nullptr) return;
  const NamedTensor q_out = {"q_out", &*p.q_out};
  check_output_strides("q_out", *p.q_out);
  for (const NamedTensor& cache : caches.all()) check_apart(q_out, cache);
  for (const NamedTensor& input : inputs.all()) check_apart(q_out, input);
  if (!is_same_view(*p.q_out, *p.q)) check_apart(q_out, {"q", &*p.q});
}

}  // namespace

AppendProblem make_append_problem(const AppendCall& call, const DecodeCall* decode) {
  AppendProblem p;
  p.k = input_view(call.k);
  p.k_cache = call.k_cache;
  if (decode != nullptr) check_one_cache(call, *decode);
  resolve_caches(p, call);
  resolve_new_rows(p, call);
  if (const auto queries = query_call(call, decode)) resolve_queries(p, *queries, call.query_positions);
  resolve_rotary(p, call);
  resolve_norms(p, call);
  check_written(p);
  if (p.k.device.type == DeviceType::kCPU) {
    check_query_rows(p);
    if (checks_caches()) check_append_entries(p);
  }
  return p;
}

}  // namespace attend::core
