#include "c/arguments.hpp"

#include <algorithm>

#include "c/struct_sizes.hpp"

namespace attend::c {
namespace {

Varlen varlen_of(const attend_varlen* given) {
  const attend_varlen varlen = read_struct("varlen", given);
  return {.cu_seqlens_q = varlen.cu_seqlens_q,
          .cu_seqlens_k = varlen.cu_seqlens_k,
          .num_sequences = varlen.num_sequences,
          .max_seqlen_q = varlen.max_seqlen_q,
          .max_seqlen_k = varlen.max_seqlen_k};
}

}  // namespace

Tensor tensor_of(const char* name, const attend_tensor* given) {
  if (given == nullptr) refuse("{}: null, allowed a tensor", name);
  const auto checked = [name](const char* what, std::int32_t value, auto last) {
    const auto most = static_cast<std::int32_t>(last);
    if (value < 0 || value > most) refuse("{}: {} {}, allowed 0 to {}", name, what, value, most);
    return static_cast<decltype(last)>(value);
  };
  Tensor tensor = {.data = given->data,
                   .dtype = checked("dtype", given->dtype, DType::kI8),
                   .device = {checked("device_type", given->device_type, DeviceType::kCUDA), given->device_index}};
  check_reserved(name, given->reserved);
  std::copy_n(given->shape, tensor.shape.size(), tensor.shape.begin());
  std::copy_n(given->stride, tensor.stride.size(), tensor.stride.begin());
  return tensor;
}

std::optional<Tensor> optional_tensor_of(const char* name, const attend_tensor* given) {
  if (given == nullptr) return std::nullopt;
  return tensor_of(name, given);
}

std::optional<ConstTensor> optional_input_of(const char* name, const attend_tensor* given) {
  if (given == nullptr) return std::nullopt;
  return tensor_of(name, given);
}

Params params_of(const attend_params* given) {
  if (given == nullptr) return {};
  const attend_params p = read_struct("params", given);
  check_reserved("params", p.reserved);
  Params params = {.causal = flag("causal", p.causal),
                   .window_left = p.window_left,
                   .window_right = p.window_right,
                   .softcap = p.softcap,
                   .alibi_slopes = optional_input_of("alibi_slopes", p.alibi_slopes),
                   .bias = optional_input_of("bias", p.bias),
                   .mask = optional_input_of("mask", p.mask),
                   .sinks = optional_input_of("sinks", p.sinks),
                   .dropout_p = p.dropout_p,
                   .seed = p.seed,
                   .offset = p.offset,
                   .philox_state = p.philox_state,
                   .deterministic = flag("deterministic", p.deterministic),
                   .workspace = {p.workspace, p.workspace_bytes},
                   .compute = compute_of(p.compute)};
  if (flag("has_scale", p.has_scale)) params.scale = p.scale;
  if (p.varlen != nullptr) params.varlen = varlen_of(p.varlen);
  return params;
}

ForwardCall forward_call_of(const attend_forward_call* given) {
  const attend_forward_call call = read_struct("call", given);
  // attend_params has no factors for 8-bit inputs.
  if (call.q != nullptr && call.q->dtype == ATTEND_F8E4M3) {
    refuse("q: dtype f8e4m3, allowed f32, f16, bf16 (f64 with compute 'reference')");
  }
  return {.q = tensor_of("q", call.q),
          .k = tensor_of("k", call.k),
          .v = tensor_of("v", call.v),
          .o = tensor_of("o", call.o),
          .lse = optional_tensor_of("lse", call.lse),
          .params = params_of(call.params),
          .stream = call.stream};
}

BackwardCall backward_call_of(const attend_backward_call* given) {
  const attend_backward_call call = read_struct("call", given);
  return {.q = tensor_of("q", call.q),
          .k = tensor_of("k", call.k),
          .v = tensor_of("v", call.v),
          .o = tensor_of("o", call.o),
          .lse = tensor_of("lse", call.lse),
          .dout = tensor_of("dout", call.dout),
          .dlse = optional_input_of("dlse", call.dlse),
          .dq = tensor_of("dq", call.dq),
          .dk = tensor_of("dk", call.dk),
          .dv = tensor_of("dv", call.dv),
          .dbias = optional_tensor_of("dbias", call.dbias),
          .dsinks = optional_tensor_of("dsinks", call.dsinks),
          .params = params_of(call.params),
          .stream = call.stream};
}

}  // namespace attend::c
