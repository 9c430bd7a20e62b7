#include "cuda/launch/kernel_args.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "cuda/driver/kernel.hpp"

namespace attend::cuda {
namespace {

TensorStrides strides(const Tensor& t) {
  return {t.stride[0], t.stride[1], t.stride[2]};
}

/// Kernels that fold the scale into the exponent multiply masked scores, which are -inf, by it: it must not be 0.
float kernel_scale(const Rung& rung, double scale) {
  const auto value = static_cast<float>(scale);
  return rung.folds_scale ? std::max(std::abs(value), std::numeric_limits<float>::min()) : value;
}

}  // namespace

ForwardArgs forward_args(const Rung& rung, const core::Problem& p, DevicePointer workspace) {
  return {.q = p.q.data,
          .k = p.k.data,
          .v = p.v.data,
          .o = p.o.data,
          .lse = p.lse ? static_cast<float*>(p.lse->data) : nullptr,
          .workspace = reinterpret_cast<void*>(workspace),  // NOLINT(performance-no-int-to-ptr)
          .q_stride = strides(p.q),
          .k_stride = strides(p.k),
          .v_stride = strides(p.v),
          .o_stride = strides(p.o),
          .lse_stride = p.lse ? strides(*p.lse) : TensorStrides{},
          .seqlen_q = p.max_seqlen_q,
          .seqlen_k = p.max_seqlen_k,
          .batch = static_cast<uint32>(p.num_sequences),
          .num_heads_q = static_cast<uint32>(p.num_heads_q),
          .num_heads_k = static_cast<uint32>(p.num_heads_k),
          .scale = kernel_scale(rung, p.scale)};
}

BackwardArgs backward_args(const Rung& rung, const core::Problem& p, DevicePointer workspace) {
  return {.dout = p.dout.data,
          .q = p.q.data,
          .k = p.k.data,
          .v = p.v.data,
          .o = p.o.data,
          .lse = static_cast<const float*>(p.lse->data),
          .dlse = p.dlse ? static_cast<const float*>(p.dlse->data) : nullptr,
          .dq = p.dq.data,
          .dk = p.dk.data,
          .dv = p.dv.data,
          .workspace = reinterpret_cast<void*>(workspace),  // NOLINT(performance-no-int-to-ptr)
          .dout_stride = strides(p.dout),
          .q_stride = strides(p.q),
          .k_stride = strides(p.k),
          .v_stride = strides(p.v),
          .o_stride = strides(p.o),
          .lse_stride = strides(*p.lse),
          .dlse_stride = p.dlse ? strides(*p.dlse) : TensorStrides{},
          .dq_stride = strides(p.dq),
          .dk_stride = strides(p.dk),
          .dv_stride = strides(p.dv),
          .seqlen_q = p.max_seqlen_q,
          .seqlen_k = p.max_seqlen_k,
          .batch = static_cast<uint32>(p.num_sequences),
          .num_heads_q = static_cast<uint32>(p.num_heads_q),
          .num_heads_k = static_cast<uint32>(p.num_heads_k),
          .scale = kernel_scale(rung, p.scale),
          .gradient_scale = static_cast<float>(p.scale),
          .unused = 0};
}

namespace {

/// The map of a tensor whose tiles are `rows` x head_dim: see ForwardTmaArgs. `somewhere`: any address of the device's,
/// for a tensor without elements, which may have none.
TensorMapArg tile_map(const Tensor& t, int rows, const void* somewhere) {
  constexpr std::uint64_t kPanel = 64;  // elements: 128 bytes, what the swizzle works on
  const auto bytes = static_cast<std::uint64_t>(dtype_bytes(t.dtype));
  const auto size = [&](int dim) { return static_cast<std::uint64_t>(std::max<std::int64_t>(1, t.shape[dim])); };
  // A dimension of one element is never stepped along: any legal stride will do where the tensor's own is not one.
  const auto stride = [&](int dim) {
    return t.shape[dim] > 1 ? static_cast<std::uint64_t>(t.stride[dim]) * bytes : kPanel * bytes;
  };
  const std::uint64_t panels = size(3) / kPanel;
  const TensorMapSpec spec = {.type = t.dtype == DType::kF16 ? TensorMapType::kFloat16 : TensorMapType::kBfloat16,
                              .rank = 5,
                              .address = reinterpret_cast<DevicePointer>(t.numel() == 0 ? somewhere : t.data),
                              .dims = {kPanel, size(2), panels, size(1), size(0)},
                              .strides = {stride(2), kPanel * bytes, stride(1), stride(0)},
                              .box = {static_cast<std::uint32_t>(kPanel), static_cast<std::uint32_t>(rows),
                                      static_cast<std::uint32_t>(panels), 1, 1}};
  return std::bit_cast<TensorMapArg>(encode_tensor_map(spec));
}

}  // namespace

ForwardTmaArgs forward_tma_args(const Step& step, const core::Problem& p, const ForwardArgs& base) {
  return {tile_map(p.q, step.block_m, p.q.data), tile_map(p.k, step.block_n, p.q.data),
          tile_map(p.v, step.block_n, p.q.data), base};
}

OptionArgs option_args_of(const core::Problem& p) {
  OptionArgs args = {};
  if (p.bias) {
    args.bias = p.bias->data;
    args.bias_stride = strides(*p.bias);
  }
  if (p.mask) {
    args.mask = static_cast<const unsigned char*>(p.mask->data);
    args.mask_stride = strides(*p.mask);
  }
  if (p.alibi_slopes) {
    args.alibi_slopes = static_cast<const float*>(p.alibi_slopes->data);
    args.alibi_sequence_stride = p.alibi_slopes->stride[0];
    args.alibi_head_stride = p.alibi_slopes->stride[1];
  }
  if (p.varlen) {
    args.cu_seqlens_q = p.varlen->cu_seqlens_q;
    args.cu_seqlens_k = p.varlen->cu_seqlens_k;
    args.total_q = p.q.shape[2];
    args.total_k = p.k.shape[2];
  }
  args.window_left = p.window_left;
  args.window_right = p.window_right;
  args.softcap = static_cast<float>(p.softcap);
  if (p.dropout_p > 0) {
    const DropoutMask mask = DropoutMask::make(p.seed, p.offset, 0, p.dropout_p);
    args.dropout_scale = static_cast<float>(1.0 / (1.0 - p.dropout_p));
    args.dropout_key0 = mask.key0;
    args.dropout_key1 = mask.key1;
    args.dropout_stream = mask.stream;
    args.dropout_threshold = mask.threshold;
  }
  return args;
}

BackwardOptionArgs backward_option_args(const BackwardArgs& base, const core::Problem& p) {
  BackwardOptionArgs args = {};
  args.base = base;
  args.options = option_args_of(p);
  args.total_rows = p.q.shape[2];
  if (p.dbias) {
    args.dbias = p.dbias->data;
    args.dbias_stride = strides(*p.dbias);
    args.dbias_batch = static_cast<uint32>(p.dbias->shape[0]);
    args.dbias_heads = static_cast<uint32>(p.dbias->shape[1]);
  }
  return args;
}

}  // namespace attend::cuda
