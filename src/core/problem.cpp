#include "core/problem.hpp"

#include <fmt/format.h>

#include <cmath>
#include <initializer_list>
#include <limits>

#include "core/problem_checks.hpp"

namespace attend::core {
namespace {

constexpr std::int64_t kAny = -1;  // a dimension that check_shape does not look at

void check_shape(const char* name, const Tensor& t, const Shape& wanted, const char* meaning) {
  for (std::size_t d = 0; d < 4; ++d) {
    if (wanted[d] != kAny && t.shape[d] != wanted[d]) {
      refuse("{}: shape {}, allowed {} = {}", name, shape_text(t.shape), meaning, shape_text(wanted));
    }
  }
}

void check_head_dim(const char* name, std::int64_t head_dim) {
  if (head_dim < 1 || head_dim > kMaxHeadDim) {
    refuse("{}: head_dim {}, allowed 1 to {}", name, head_dim, kMaxHeadDim);
  }
}

void check_heads(const Tensor& q, const Tensor& k) {
  const std::int64_t heads_q = q.shape[1];
  const std::int64_t heads_k = k.shape[1];
  const bool divides = heads_k == 0 ? heads_q == 0 : heads_q % heads_k == 0;
  if (!divides) refuse("k: num_heads_k {}, allowed a divisor of num_heads_q {}", heads_k, heads_q);
}

/// Shape (1 or full[d]) in every dimension below `exact_from`, full[d] from there on; the result has full shape.
Tensor broadcast(const char* name, const Tensor& t, const Shape& full, std::size_t exact_from) {
  Tensor expanded = t;
  for (std::size_t d = 0; d < 4; ++d) {
    const bool fits = t.shape[d] == full[d] || (d < exact_from && t.shape[d] == 1);
    if (!fits) {
      refuse("{}: shape {}, dimension {} must be {}{}", name, shape_text(t.shape), d, full[d],
             d < exact_from ? " or 1" : "");
    }
    if (t.shape[d] != full[d]) {
      expanded.shape[d] = full[d];
      expanded.stride[d] = 0;
    }
  }
  return expanded;
}

void check_params(const Params& params) {
  // Most backends compute in float: what overflows there would make NaN of good inputs.
  constexpr double kLargest = std::numeric_limits<float>::max();
  constexpr double kLeast = std::numeric_limits<float>::min();
  if (params.scale && !(std::abs(*params.scale) <= kLargest)) {
    refuse("scale: {}, allowed finite numbers up to {:.3g} in magnitude", *params.scale, kLargest);
  }
  if (params.softcap != 0 && !(params.softcap >= kLeast && params.softcap <= kLargest)) {
    refuse("softcap: {}, allowed 0 (off) and finite numbers from {:.3g} to {:.3g}", params.softcap, kLeast, kLargest);
  }
  if (!(params.dropout_p >= 0 && params.dropout_p < 1)) {
    refuse("dropout_p: {}, allowed 0 <= dropout_p < 1", params.dropout_p);
  }
  for (const auto& [name, window] :
       {std::pair{"window_left", params.window_left}, {"window_right", params.window_right}}) {
    if (window < kOpenWindow) refuse("{}: {}, allowed >= 0, or -1 for open", name, window);
  }
}

void check_offsets(const char* name, const std::int32_t* offsets, std::int64_t count, std::int64_t total,
                   std::int64_t longest) {
  if (offsets[0] != 0) refuse("{}: first entry {}, allowed 0", name, offsets[0]);
  for (std::int64_t s = 0; s < count; ++s) {
    const std::int64_t length = std::int64_t{offsets[s + 1]} - offsets[s];
    if (length < 0)
      refuse("{}: entry {} is {} after {}, allowed non-decreasing", name, s + 1, offsets[s + 1], offsets[s]);
    if (length > longest) {
      refuse("{}: sequence {} has length {}, allowed <= max_seqlen_{} = {}", name, s, length,
             std::string_view(name).back(), longest);
    }
  }
  if (offsets[count] != total)
    refuse("{}: last entry {}, allowed the total number of tokens {}", name, offsets[count], total);
}

/// What can be told without reading offsets that may be on a GPU.
void check_longest(const char* name, std::int64_t longest, std::int64_t count, std::int64_t total) {
  if (longest < 0 || longest > kMaxLength) refuse("{}: {}, allowed 0 to {}", name, longest, kMaxLength);
  if (longest * count < total) {  // below 2^62: both are lengths
    refuse("{}: {}, too small for {} tokens in {} sequences", name, longest, total, count);
  }
}

void resolve_varlen(Problem& p, const Params& params, const WholeLengths& whole) {
  const Varlen& varlen = *params.varlen;
  if (params.bias) refuse("bias: given with varlen, allowed without varlen only");
  if (params.mask) refuse("mask: given with varlen, allowed without varlen only");
  for (const auto& [name, tensor] : {std::pair{"q", &p.q}, {"k", &p.k}}) {
    if (tensor->shape[0] != 1) refuse("{}: batch {} with varlen, allowed 1 (packed tokens)", name, tensor->shape[0]);
  }
  if (varlen.num_sequences < 0 || varlen.num_sequences > kMaxLength) {
    refuse("varlen.num_sequences: {}, allowed 0 to {}", varlen.num_sequences, kMaxLength);
  }
  if (varlen.cu_seqlens_q == nullptr) refuse("varlen.cu_seqlens_q: null, allowed num_sequences + 1 entries");
  if (varlen.cu_seqlens_k == nullptr) refuse("varlen.cu_seqlens_k: null, allowed num_sequences + 1 entries");
  check_longest("varlen.max_seqlen_q", varlen.max_seqlen_q, varlen.num_sequences, whole.seqlen_q);
  check_longest("varlen.max_seqlen_k", varlen.max_seqlen_k, varlen.num_sequences, whole.seqlen_k);
  p.varlen = varlen;
  p.num_sequences = varlen.num_sequences;
  p.max_seqlen_q = varlen.max_seqlen_q;
  p.max_seqlen_k = varlen.max_seqlen_k;
  if (p.q.device.type != DeviceType::kCPU) return;
  check_varlen_offsets(p, varlen.cu_seqlens_q, varlen.cu_seqlens_k, whole);
}

void resolve_params(Problem& p, const Params& params, const WholeLengths& whole) {
  check_params(params);
  p.scale = params.scale.value_or(1.0 / std::sqrt(static_cast<double>(p.head_dim)));
  p.softcap = params.softcap;
  p.window_left = std::min(params.window_left, kMaxLength);
  p.window_right = params.causal ? 0 : std::min(params.window_right, kMaxLength);
  p.dropout_p = params.dropout_p;
  p.seed = params.seed;
  p.offset = params.offset;
  if (const std::uint64_t* state = params.philox_state; state != nullptr && p.dropout_p > 0) {
    if (reinterpret_cast<std::uintptr_t>(state) % alignof(std::uint64_t) != 0) {
      refuse("philox_state: address {}, allowed multiples of {}", static_cast<const void*>(state),
             alignof(std::uint64_t));
    }
    if (p.q.device.type == DeviceType::kCPU) {
      p.seed = state[0];
      p.offset = state[1];
    } else {
      p.philox_state = state;
    }
  }
  p.deterministic = params.deterministic;
  p.workspace = params.workspace;
  if (params.alibi_slopes) {
    check_tensor("alibi_slopes", *params.alibi_slopes, p.q.device);
    if (params.alibi_slopes->dtype != DType::kF32) {
      refuse("alibi_slopes: dtype {}, allowed f32", dtype_name(params.alibi_slopes->dtype));
    }
    Tensor slopes = *params.alibi_slopes;
    if (p.num_heads_q != 1 && slopes.shape[1] == 1) {
      refuse("alibi_slopes: shape {}, dimension 1 must be {}", shape_text(slopes.shape), p.num_heads_q);
    }
    p.alibi_slopes = broadcast("alibi_slopes", slopes, {p.num_sequences, p.num_heads_q, 1, 1}, 1);
  }
  const Shape scores = {p.q.shape[0], p.num_heads_q, p.max_seqlen_q, whole.seqlen_k};
  if (params.bias) {
    check_float_tensor("bias", *params.bias, p.q.device);
    p.bias = broadcast("bias", *params.bias, scores, 3);
  }
  if (params.mask) {
    check_tensor("mask", *params.mask, p.q.device);
    if (params.mask->dtype != DType::kBool) refuse("mask: dtype {}, allowed bool", dtype_name(params.mask->dtype));
    p.mask = broadcast("mask", *params.mask, scores, 3);
  }
}

/// Everything that forward and backward have in common.
Problem make_problem(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& o, const Tensor* lse,
                     const Params& params, const WholeLengths* whole) {
  Problem p;
  const std::pair<const char*, const Tensor*> tensors[] = {{"q", &q}, {"k", &k}, {"v", &v}, {"o", &o}};
  for (const auto& [name, tensor] : tensors) check_float_tensor(name, *tensor, q.device);
  check_head_dim("q", q.shape[3]);
  check_head_dim("v", v.shape[3]);
  check_shape("k", k, {q.shape[0], kAny, kAny, q.shape[3]}, "(batch of q, num_heads_k, seqlen_k, head_dim of q)");
  check_heads(q, k);
  check_shape("v", v, {k.shape[0], k.shape[1], k.shape[2], kAny}, "(batch, num_heads_k and seqlen_k of k, head_dim_v)");
  check_shape("o", o, {q.shape[0], q.shape[1], q.shape[2], v.shape[3]},
              "(batch, num_heads_q and seqlen_q of q, head_dim_v of v)");
  p.q = q;
  p.k = k;
  p.v = v;
  p.o = o;
  p.num_sequences = q.shape[0];
  p.num_heads_q = q.shape[1];
  p.num_heads_k = k.shape[1];
  p.max_seqlen_q = q.shape[2];
  p.max_seqlen_k = k.shape[2];
  p.head_dim = q.shape[3];
  p.head_dim_v = v.shape[3];
  if (lse != nullptr) {
    check_lse_like("lse", *lse, p);
    p.lse = *lse;
  }
  const WholeLengths lengths = whole != nullptr ? *whole : WholeLengths{q.shape[2], k.shape[2]};
  if (params.varlen) resolve_varlen(p, params, lengths);
  resolve_params(p, params, lengths);
  return p;
}

std::vector<NamedTensor> inputs_of(const Problem& p) {
  std::vector<NamedTensor> inputs = {{"q", &p.q}, {"k", &p.k}, {"v", &p.v}};
  if (p.bias) inputs.push_back({"bias", &*p.bias});
  if (p.mask) inputs.push_back({"mask", &*p.mask});
  if (p.alibi_slopes) inputs.push_back({"alibi_slopes", &*p.alibi_slopes});
  return inputs;
}

}  // namespace

void check_varlen_offsets(const Problem& p, const std::int32_t* cu_seqlens_q, const std::int32_t* cu_seqlens_k,
                          const WholeLengths& total) {
  check_offsets("varlen.cu_seqlens_q", cu_seqlens_q, p.num_sequences, total.seqlen_q, p.max_seqlen_q);
  check_offsets("varlen.cu_seqlens_k", cu_seqlens_k, p.num_sequences, total.seqlen_k, p.max_seqlen_k);
}

Problem make_forward_problem(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& o, const Tensor* lse,
                             const Params& params, const WholeLengths* whole) {
  Problem p = make_problem(q, k, v, o, lse, params, whole);
  std::vector<NamedTensor> outputs = {{"o", &p.o}};
  if (p.lse) outputs.push_back({"lse", &*p.lse});
  check_outputs(outputs, inputs_of(p));
  return p;
}

Problem make_backward_problem(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& o,
                              const Tensor& lse, const Tensor& dq, const Tensor& dk, const Tensor& dv,
                              const Params& params, const BackwardExtras& extras, const WholeLengths* whole) {
  Problem p = make_problem(q, k, v, o, &lse, params, whole);
  const std::pair<const char*, const Tensor*> tensors[] = {{"dout", &dout}, {"dq", &dq}, {"dk", &dk}, {"dv", &dv}};
  for (const auto& [name, tensor] : tensors) check_float_tensor(name, *tensor, q.device);
  check_shape("dout", dout, o.shape, "shape of o");
  check_shape("dq", dq, q.shape, "shape of q");
  check_shape("dk", dk, k.shape, "shape of k");
  check_shape("dv", dv, v.shape, "shape of v");
  p.is_backward = true;
  p.dout = dout;
  p.dq = dq;
  p.dk = dk;
  p.dv = dv;
  std::vector<NamedTensor> inputs = inputs_of(p);
  inputs.insert(inputs.end(), {{"o", &p.o}, {"lse", &*p.lse}, {"dout", &p.dout}});
  std::vector<NamedTensor> outputs = {{"dq", &p.dq}, {"dk", &p.dk}, {"dv", &p.dv}};
  if (extras.dlse) {
    check_lse_like("dlse", *extras.dlse, p);
    p.dlse = *extras.dlse;
    inputs.push_back({"dlse", &*p.dlse});
  }
  if (extras.dbias) {
    if (!params.bias) refuse("dbias: given without params.bias, allowed with it only");
    check_float_tensor("dbias", *extras.dbias, q.device);
    check_shape("dbias", *extras.dbias, params.bias->shape, "shape of params.bias");
    p.dbias = *extras.dbias;
    outputs.push_back({"dbias", &*p.dbias});
  }
  check_outputs(outputs, inputs);
  return p;
}

}  // namespace attend::core
