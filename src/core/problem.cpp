#include "core/problem.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <span>

#include "core/problem_checks.hpp"
#include "core/score_options.hpp"

namespace attend::core {
namespace {

/// A list of tensors and their names. The list allocates no memory, because every call makes several such lists.
class TensorList {
 public:
  TensorList(std::initializer_list<NamedTensor> tensors) {
    for (const NamedTensor& named : tensors) add(named.name, *named.tensor);
  }
  void add(const char* name, const Tensor& t) { all_.at(count_++) = {name, &t}; }
  void add(const char* name, const std::optional<Tensor>& t) {
    if (t) add(name, *t);
  }
  [[nodiscard]] std::span<const NamedTensor> all() const { return {all_.data(), count_}; }

 private:
  std::array<NamedTensor, 10 + kScoreTensors.size()> all_ = {};
  std::size_t count_ = 0;
};

void check_params(const Params& params) {
  check_scale(params.scale);
  for (const ScoreNumber& row : kScoreNumbers) {
    const double value = params.*row.param;
    if (!row.is_allowed(value)) refuse("{}: {}, allowed {}", row.name, value, row.allowed);
  }
  check_window(params.window_left, params.window_right);
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

/// Checks that the length of the longest sequence is possible for the number of tokens. Does not read the offsets,
/// because they may be in GPU memory.
void check_longest(const char* name, std::int64_t longest, std::int64_t count, std::int64_t total) {
  if (longest < 0 || longest > kMaxLength) refuse("{}: {}, allowed 0 to {}", name, longest, kMaxLength);
  if (longest * count < total) {  // the product is below 2^62, because each factor is below 2^31
    refuse("{}: {}, too small for {} tokens in {} sequences", name, longest, total, count);
  }
}

void resolve_varlen(Problem& p, const Params& params, const WholeLengths& whole) {
  const Varlen& varlen = *params.varlen;
  for (const ScoreTensor& row : kScoreTensors) {
    if (row.is_of_scores() && params.*row.param) refuse("{}: given with varlen, allowed without varlen only", row.name);
  }
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

void read_philox_state(Problem& p, const std::uint64_t* state) {
  p.seed = state[0];
  p.offset = state[1];
}

void resolve_philox_state(Problem& p, const std::uint64_t* state) {
  if (state == nullptr || p.dropout_p <= 0) return;
  if (reinterpret_cast<std::uintptr_t>(state) % alignof(std::uint64_t) != 0) {
    refuse("philox_state: address {}, allowed multiples of {}", static_cast<const void*>(state),
           alignof(std::uint64_t));
  }
  if (p.q.device.type == DeviceType::kCPU) {
    read_philox_state(p, state);
  } else {
    p.philox_state = state;
  }
}

void resolve_params(Problem& p, const Params& params, const WholeLengths& whole) {
  check_params(params);
  p.scale = params.scale.value_or(1.0 / std::sqrt(static_cast<double>(p.head_dim)));
  p.window_left = std::min(params.window_left, kMaxLength);
  p.window_right = params.causal ? 0 : std::min(params.window_right, kMaxLength);
  for (const ScoreNumber& row : kScoreNumbers) p.*row.value = params.*row.param;
  p.seed = params.seed;
  p.offset = params.offset;
  resolve_philox_state(p, params.philox_state);
  p.deterministic = params.deterministic;
  p.workspace = params.workspace;
  const OptionShapes shapes = {p.q.device,
                               {p.q.shape[0], p.num_heads_q, p.max_seqlen_q, whole.seqlen_k},
                               {p.num_sequences, p.num_heads_q, 1, 1}};
  for (const ScoreTensor& row : kScoreTensors) {
    if (params.*row.param) p.*row.tensor = resolved(row, input_view(*(params.*row.param)), shapes);
  }
}

/// Checks a tensor of descales and expands its broadcast dimensions. `blocks` is the number of blocks of keys, or 1.
Tensor resolved_descale(const char* name, const ConstTensor& passed, const Problem& p, std::int64_t blocks) {
  Tensor t = input_view(passed);
  check_tensor(name, t, p.q.device);
  if (t.dtype != DType::kF32) refuse("{}: dtype {}, allowed f32", name, dtype_name(t.dtype));
  const Shape full = {p.num_sequences, p.num_heads_k, blocks, 1};
  for (std::size_t d = 0; d < 4; ++d) {
    if (t.shape[d] != 1 && t.shape[d] != full[d]) {
      refuse("{}: shape {}, allowed (1 or {}, 1 or {}, 1{}, 1)", name, shape_text(t.shape), full[0], full[1],
             blocks == 1 ? "" : fmt::format(" or {}", blocks));
    }
    if (t.shape[d] == 1) t.stride[d] = 0;
  }
  t.shape = full;
  return t;
}

void resolve_descales(Problem& p, const Params& params) {
  const std::int64_t blocks = std::max<std::int64_t>(1, (p.max_seqlen_k + kDescaleKeys - 1) / kDescaleKeys);
  const auto resolve = [&](const char* name, const std::optional<ConstTensor>& passed, std::int64_t most,
                           std::optional<Tensor>& to) {
    if (!passed) return;
    if (p.q.dtype != DType::kF8E4M3) refuse("{}: given with q of {}, allowed with f8e4m3", name, dtype_name(p.q.dtype));
    to = resolved_descale(name, *passed, p, most);
  };
  resolve("q_descale", params.q_descale, 1, p.q_descale);
  resolve("k_descale", params.k_descale, blocks, p.k_descale);
  resolve("v_descale", params.v_descale, blocks, p.v_descale);
}

/// Checks q, k, v and o. A complete forward pass may also have inputs of 8 bits.
void check_main_tensors(const Problem& p, bool may_have_8_bits) {
  const bool has_8_bits = may_have_8_bits && p.q.dtype == DType::kF8E4M3;
  for (const auto& [name, tensor] : {std::pair{"q", &p.q}, {"k", &p.k}, {"v", &p.v}}) {
    if (!has_8_bits) {
      check_float_tensor(name, *tensor, p.q.device);
      continue;
    }
    if (tensor->dtype != p.q.dtype) {
      refuse("{}: dtype {}, allowed the dtype of q, {}", name, dtype_name(tensor->dtype), dtype_name(p.q.dtype));
    }
    check_tensor(name, *tensor, p.q.device);
  }
  check_float_tensor("o", p.o, p.q.device);
}

/// Checks and resolves the arguments that forward and backward have in common. The caller has set q, k, v, o, and lse
/// if there is one. The argument `wants_gradients` is true if the call requests gradients of captures.
void check_and_resolve(Problem& p, const Params& params, const WholeLengths* whole, bool is_forward,
                       bool wants_gradients = false) {
  const Tensor &q = p.q, &k = p.k, &v = p.v, &o = p.o;
  check_main_tensors(p, is_forward && whole == nullptr);
  check_head_dim("q", q, kMaxHeadDim);
  check_head_dim("v", v, kMaxHeadDim);
  check_shape("k", k, {q.shape[0], kAny, kAny, q.shape[3]}, "(batch of q, num_heads_k, seqlen_k, head_dim of q)");
  check_heads("k", k, q);
  check_shape("v", v, {k.shape[0], k.shape[1], k.shape[2], kAny}, "(batch, num_heads_k and seqlen_k of k, head_dim_v)");
  check_shape("o", o, {q.shape[0], q.shape[1], q.shape[2], v.shape[3]},
              "(batch, num_heads_q and seqlen_q of q, head_dim_v of v)");
  p.num_sequences = q.shape[0];
  p.num_heads_q = q.shape[1];
  p.num_heads_k = k.shape[1];
  p.max_seqlen_q = q.shape[2];
  p.max_seqlen_k = k.shape[2];
  p.head_dim = q.shape[3];
  p.head_dim_v = v.shape[3];
  if (p.lse) check_lse_like("lse", *p.lse, p);
  const WholeLengths lengths = whole != nullptr ? *whole : WholeLengths{q.shape[2], k.shape[2]};
  if (params.varlen) resolve_varlen(p, params, lengths);
  resolve_params(p, params, lengths);
  resolve_descales(p, params);
  resolve_block_mask(p, params, whole == nullptr);
  resolve_score_function(p, params, whole == nullptr, wants_gradients);
}

/// Checks and sets the gradients of option tensors. The shape of a gradient is the shape of the tensor as the caller
/// passed it, before broadcast dimensions are expanded.
void resolve_score_gradients(Problem& p, const BackwardCall& call) {
  for (const ScoreTensor& row : kScoreTensors) {
    if (row.gradient == nullptr || !(call.*row.passed_gradient)) continue;
    const Tensor& gradient = *(call.*row.passed_gradient);
    const auto& passed = call.params.*row.param;
    if (!passed) refuse("{}: given without params.{}, allowed with it only", row.gradient, row.name);
    check_float_tensor(row.gradient, gradient, p.q.device);
    if (gradient.shape != passed->shape) {
      check_shape(row.gradient, gradient, passed->shape, fmt::format("shape of params.{}", row.name).c_str());
    }
    p.*row.gradient_tensor = gradient;
  }
}

TensorList inputs_of(const Problem& p) {
  TensorList inputs = {{"q", &p.q}, {"k", &p.k}, {"v", &p.v}};
  for (const ScoreTensor& row : kScoreTensors) inputs.add(row.name, p.*row.tensor);
  inputs.add("q_descale", p.q_descale);
  inputs.add("k_descale", p.k_descale);
  inputs.add("v_descale", p.v_descale);
  return inputs;
}

}  // namespace

void check_varlen_offsets(const Problem& p, const std::int32_t* cu_seqlens_q, const std::int32_t* cu_seqlens_k,
                          const WholeLengths& total) {
  check_offsets("varlen.cu_seqlens_q", cu_seqlens_q, p.num_sequences, total.seqlen_q, p.max_seqlen_q);
  check_offsets("varlen.cu_seqlens_k", cu_seqlens_k, p.num_sequences, total.seqlen_k, p.max_seqlen_k);
}

Problem make_problem(const ForwardCall& call, const WholeLengths* whole) {
  Problem p;
  p.q = input_view(call.q);
  p.k = input_view(call.k);
  p.v = input_view(call.v);
  p.o = call.o;
  p.lse = call.lse;
  check_and_resolve(p, call.params, whole, true);
  TensorList outputs = {{"o", &p.o}};
  outputs.add("lse", p.lse);
  check_captured_memory(p, call.params, outputs.all(), inputs_of(p).all());
  check_outputs(outputs.all(), inputs_of(p).all());
  return p;
}

Problem make_problem(const BackwardCall& call, const WholeLengths* whole) {
  Problem p;
  p.q = input_view(call.q);
  p.k = input_view(call.k);
  p.v = input_view(call.v);
  p.o = input_view(call.o);
  p.lse = input_view(call.lse);
  check_and_resolve(p, call.params, whole, false, !call.captures.empty());
  p.is_backward = true;
  p.dout = input_view(call.dout);
  p.dq = call.dq;
  p.dk = call.dk;
  p.dv = call.dv;
  const std::pair<const char*, const Tensor*> tensors[] = {
      {"dout", &p.dout}, {"dq", &p.dq}, {"dk", &p.dk}, {"dv", &p.dv}};
  for (const auto& [name, tensor] : tensors) check_float_tensor(name, *tensor, p.q.device);
  check_shape("dout", p.dout, p.o.shape, "shape of o");
  check_shape("dq", p.dq, p.q.shape, "shape of q");
  check_shape("dk", p.dk, p.k.shape, "shape of k");
  check_shape("dv", p.dv, p.v.shape, "shape of v");
  if (call.dlse) {
    p.dlse = input_view(*call.dlse);
    check_lse_like("dlse", *p.dlse, p);
  }
  resolve_score_gradients(p, call);
  resolve_captured_gradients(p, call.captures);
  TensorList inputs = inputs_of(p);
  inputs.add("o", p.o);
  inputs.add("lse", p.lse);
  inputs.add("dout", p.dout);
  inputs.add("dlse", p.dlse);
  TensorList outputs = {{"dq", &p.dq}, {"dk", &p.dk}, {"dv", &p.dv}};
  for (const ScoreTensor& row : kScoreTensors) {
    if (row.gradient != nullptr) outputs.add(row.gradient, p.*row.gradient_tensor);
  }
  check_captured_memory(p, call.params, outputs.all(), inputs.all());
  check_outputs(outputs.all(), inputs.all());
  return p;
}

void read_again(Problem& p, const std::uint64_t* philox_state) {
  if (p.q.device.type != DeviceType::kCPU) return;
  if (p.varlen) {
    check_varlen_offsets(p, p.varlen->cu_seqlens_q, p.varlen->cu_seqlens_k, {p.q.shape[2], p.k.shape[2]});
  }
  if (philox_state != nullptr && p.dropout_p > 0) read_philox_state(p, philox_state);
}

}  // namespace attend::core
