#include "cuda/launch/kernel_args.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/dtype_traits.hpp"
#include "cuda/launch/facts.hpp"
#include "cuda/launch/tensor_maps.hpp"
#include "kernels/common/element_info.cuh"

namespace attend::cuda {
namespace {

/// Returns whether two assumptions of the kernels hold for all element types: tensors have no scaling factors, and
/// kernels accumulate in float.
constexpr bool is_as_kernels_expect() {
  for (int number = 0;; ++number) {
    const ElementInfo info = element_info(static_cast<ElementType>(number));
    if (info.bytes == 0) return true;
    if (info.has_descale || info.accumulated != ElementType::kF32) return false;
  }
}
static_assert(is_as_kernels_expect());

/// Returns the softmax scale for a kernel. If the kernel folds the scale into the exponent, the scale must not be 0,
/// because the kernel multiplies masked scores of -inf by it.
float kernel_scale(double scale, bool folds_scale) {
  const auto value = static_cast<float>(scale);
  return folds_scale ? std::max(std::abs(value), std::numeric_limits<float>::min()) : value;
}

/// Sets the arguments for the tensors that the custom score function reads.
void set_captured(OptionArgs& args, const core::CustomScore& score) {
  for (std::size_t n = 0; n < score.captured.size(); ++n) args.captured[n] = captured_tensor(score.captured[n]);
}

/// Returns the arguments that forward and backward kernels share.
template <class Args>
Args args_of(const core::Problem& p, void* workspace, bool folds_scale) {
  Args args = {};
  args.q = p.q.data;
  args.k = p.k.data;
  args.v = p.v.data;
  args.o = p.o.data;
  args.lse = p.lse ? static_cast<float*>(p.lse->data) : nullptr;
  args.workspace = workspace;
  args.q_stride = core::strides_of(p.q);
  args.k_stride = core::strides_of(p.k);
  args.v_stride = core::strides_of(p.v);
  args.o_stride = core::strides_of(p.o);
  args.lse_stride = p.lse ? core::strides_of(*p.lse) : TensorStrides{};
  args.seqlen_q = p.max_seqlen_q;
  args.seqlen_k = p.max_seqlen_k;
  args.batch = static_cast<uint32>(p.num_sequences);
  args.num_heads_q = static_cast<uint32>(p.num_heads_q);
  args.num_heads_k = static_cast<uint32>(p.num_heads_k);
  args.scale = kernel_scale(p.scale, folds_scale);
  return args;
}

void set_placement(OptionArgs& args, const core::Problem& p, const core::Placement& at) {
  const auto off = static_cast<double>(p.max_seqlen_k - p.max_seqlen_q);
  args.row_begin = at.row_begin;
  args.key_begin = at.key_begin;
  args.position_step = static_cast<uint32>(at.step);
  args.dropout_head = static_cast<uint32>(at.sequence_begin * p.num_heads_q);
  args.alibi_shift = static_cast<float>(static_cast<double>(at.distance(0, 0)) / static_cast<double>(at.step) - off);
}

}  // namespace

CapturedTensor captured_tensor(const Tensor& t) {
  CapturedTensor args = {};
  args.data = t.data;
  for (std::size_t d = 0; d < t.shape.size(); ++d) {
    args.stride[d] = t.stride[d];
    args.extent[d] = static_cast<int>(std::min<std::int64_t>(t.shape[d], std::numeric_limits<int>::max()));
  }
  return args;
}

ForwardArgs forward_args(const core::Problem& p, void* workspace, bool folds_scale) {
  return args_of<ForwardArgs>(p, workspace, folds_scale);
}

BackwardArgs backward_args(const core::Problem& p, void* workspace, bool folds_scale) {
  auto args = args_of<BackwardArgs>(p, workspace, folds_scale);
  args.dout = p.dout.data;
  args.dlse = p.dlse ? static_cast<const float*>(p.dlse->data) : nullptr;
  args.dq = p.dq.data;
  args.dk = p.dk.data;
  args.dv = p.dv.data;
  args.dout_stride = core::strides_of(p.dout);
  args.dlse_stride = p.dlse ? core::strides_of(*p.dlse) : TensorStrides{};
  args.dq_stride = core::strides_of(p.dq);
  args.dk_stride = core::strides_of(p.dk);
  args.dv_stride = core::strides_of(p.dv);
  args.gradient_scale = static_cast<float>(p.scale);
  if (p.part) {
    args.overwritten =
        (p.part->is_first_of_rows ? kOverwritesQueries : 0) | (p.part->is_first_of_keys ? kOverwritesKeys : 0);
  }
  return args;
}

ForwardTmaArgs forward_tma_args(const core::Problem& p, int block_m, int block_n, const ForwardArgs& base) {
  return {panel_map(p.q, block_m, p.q.data), panel_map(p.k, block_n, p.q.data), panel_map(p.v, block_n, p.q.data),
          base};
}

double made_up_for_cut_off(const core::Problem& p) {
  // kDepth is the number of head_dim columns per matrix instruction. Above kWide columns, the truncation loss of a
  // score is larger.
  constexpr std::int64_t kDepth = 16, kWide = 192;
  const double share = [&p] {
    if (!core::is_float(p.q.dtype)) return 0.0;  // products of 8-bit floats have few digits
    switch (element_of(p.q.dtype)) {
      case ElementType::kF16:
        return p.head_dim <= kWide ? 0.69 : 0.76;
      case ElementType::kBF16:
        return 0.375;
      case ElementType::kF32:
        break;  // tensor cores do not compute float32 scores
    }
    return 0.0;
  }();
  return 1 + share * 0x1p-24 * static_cast<double>((p.head_dim + kDepth - 1) / kDepth);
}

float made_up_scale(const core::Problem& p, bool folds_scale) {
  return kernel_scale(p.scale * made_up_for_cut_off(p), folds_scale);
}

float sm90_folded_scale(const core::Problem& p) {
  constexpr double kLog2E = 1.4426950408889634, kLeast = 0x1p-100, kMost = std::numeric_limits<float>::max();
  return static_cast<float>(std::clamp(std::abs(p.scale * made_up_for_cut_off(p)) * kLog2E, kLeast, kMost));
}

float sm90_backward_folded_scale(const core::Problem& p) {
  constexpr double kLog2E = 1.4426950408889634, kLeast = 1e-30, kMost = std::numeric_limits<float>::max();
  const double scale = p.scale * made_up_for_cut_off(p);
  const double magnitude = std::clamp(std::abs(scale) * kLog2E, kLeast, kMost);
  return static_cast<float>(scale < 0 ? -magnitude : magnitude);
}

OptionArgs option_args_of(const core::Problem& p) {
  OptionArgs args = {};
  if (p.bias) {
    args.bias = p.bias->data;
    args.bias_stride = core::strides_of(*p.bias);
  }
  if (p.mask) {
    args.mask = static_cast<const unsigned char*>(p.mask->data);
    args.mask_stride = core::strides_of(*p.mask);
  }
  if (p.alibi_slopes) {
    args.alibi_slopes = static_cast<const float*>(p.alibi_slopes->data);
    args.alibi_sequence_stride = p.alibi_slopes->stride[0];
    args.alibi_head_stride = p.alibi_slopes->stride[1];
  }
  if (p.sinks) {
    args.row_logits = p.sinks->data;
    args.row_logit_sequence_stride = p.sinks->stride[0];
    args.row_logit_head_stride = p.sinks->stride[1];
    args.row_logits_element = static_cast<uint32>(element_of(p.sinks->dtype));
  }
  if (p.varlen) {
    args.cu_seqlens_q = p.varlen->cu_seqlens_q;
    args.cu_seqlens_k = p.varlen->cu_seqlens_k;
    args.total_q = p.q.shape[2];
    args.total_k = p.k.shape[2];
  }
  if (p.custom_score != nullptr) set_captured(args, *p.custom_score);
  const core::Problem::Window window = p.own_window();
  args.window_left = window.left;
  args.window_right = window.right;
  args.transform_cap = static_cast<float>(p.transform_cap);
  if (p.dropout_p > 0) {
    const DropMask mask = DropMask::make(p.seed, p.offset, 0, p.dropout_p);
    args.dropout_scale = static_cast<float>(1.0 / (1.0 - p.dropout_p));
    args.dropout_key0 = mask.key0;
    args.dropout_key1 = mask.key1;
    args.dropout_stream = mask.stream;
    args.dropout_threshold = mask.threshold;
    args.philox_state = p.philox_state;
  }
  if (const core::Placement* at = p.placement()) set_placement(args, p, *at);
  return args;
}

BackwardOptionArgs backward_option_args(const BackwardArgs& base, const core::Problem& p) {
  BackwardOptionArgs args = {};
  args.base = base;
  args.options = option_args_of(p);
  args.total_rows = p.q.shape[2];
  for (const core::CapturedGradient& g : p.captured_gradients) {
    args.captured_gradients[g.capture] = static_cast<float*>(g.gradient.data);
  }
  if (p.dbias) {
    args.dterms = p.dbias->data;
    args.dterms_stride = core::strides_of(*p.dbias);
    args.dterms_batch = static_cast<uint32>(p.dbias->shape[0]);
    args.dterms_heads = static_cast<uint32>(p.dbias->shape[1]);
  }
  if (p.dsinks) {
    args.dlogits = p.dsinks->data;
    args.dlogits_sequence_stride = p.dsinks->stride[0];
    args.dlogits_head_stride = p.dsinks->stride[1];
    args.dlogits_sequences = static_cast<uint32>(p.dsinks->shape[0]);
    args.dlogits_element = static_cast<uint32>(element_of(p.dsinks->dtype));
  }
  return args;
}

}  // namespace attend::cuda
