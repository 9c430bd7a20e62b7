#include "cuda/launch/rung.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "core/backend.hpp"
#include "cuda/driver/device.hpp"

namespace attend::cuda {
namespace {

const char* args_name(StepArgs args) {
  switch (args) {
    case StepArgs::kForward:
      return "ForwardArgs";
    case StepArgs::kForwardTma:
      return "ForwardTmaArgs";
    case StepArgs::kForwardOptions:
      return "ForwardOptionArgs";
    case StepArgs::kBackward:
      return "BackwardArgs";
    case StepArgs::kBackwardOptions:
      return "BackwardOptionArgs";
  }
  return "?";
}

const char* mask_name(MaskKind mask) {
  return mask == MaskKind::kWindow ? "kWindow" : mask == MaskKind::kCausal ? "kCausal" : "kFull";
}

std::vector<Constant> option_constants(const OptionSet& options) {
  return {
      {"kHasSoftcap", options.softcap},       {"kHasAlibi", options.alibi},
      {"kHasBias", options.bias.has_value()}, {"kBiasElement", element_constant(options.bias.value_or(DType::kF32))},
      {"kHasBoolMask", options.bool_mask},    {"kHasDropout", options.dropout},
      {"kIsVarlen", options.varlen}};
}

std::string lack_text(const char* argument, const auto& value, const Rung& rung, const auto& allowed) {
  return fmt::format("{} {}, compute '{}' allows {}", argument, value, rung.name, allowed);
}

std::optional<std::string> option_lack(const Rung& rung, const core::Problem& p) {
  if (p.is_backward && p.deterministic && !rung.deterministic_backward) {
    return lack_text("deterministic:", "true", rung, "false");
  }
  if (rung.takes_options) {
    for (const auto& [name, tensor] : {std::pair{"bias: dtype", &p.bias}, {"dbias: dtype", &p.dbias}}) {
      if (*tensor && (*tensor)->dtype == DType::kF64) return lack_text(name, "f64", rung, "f32, f16, bf16");
    }
    return std::nullopt;
  }
  if (p.softcap != 0) return lack_text("softcap:", p.softcap, rung, "0");
  if (p.dropout_p != 0) return lack_text("dropout_p:", p.dropout_p, rung, "0");
  if (p.window_left >= 0) return lack_text("window_left:", p.window_left, rung, "-1");
  if (p.window_right > 0) return lack_text("window_right:", p.window_right, rung, "-1, or causal");
  if (p.alibi_slopes) return lack_text("alibi_slopes:", "given", rung, "none");
  if (p.bias) return lack_text("bias:", "given", rung, "none");
  if (p.mask) return lack_text("mask:", "given", rung, "none");
  if (p.varlen) return lack_text("varlen:", "given", rung, "none");
  return std::nullopt;
}

std::optional<std::string> head_dim_lack(const Rung& rung, const core::Problem& p) {
  const auto& allowed = rung.head_dims;
  if (allowed.empty()) {
    if (p.head_dim > rung.max_head_dim) {
      return lack_text("q: head_dim", p.head_dim, rung, fmt::format("1 to {}", rung.max_head_dim));
    }
    if (p.head_dim_v > rung.max_head_dim) {
      return lack_text("v: head_dim", p.head_dim_v, rung, fmt::format("1 to {}", rung.max_head_dim));
    }
  } else if (std::find(allowed.begin(), allowed.end(), p.head_dim) == allowed.end()) {
    return lack_text("q: head_dim", p.head_dim, rung, fmt::format("{}", fmt::join(allowed, ", ")));
  }
  if (!rung.any_head_dim_v && p.head_dim_v != p.head_dim) {
    return lack_text("v: head_dim", p.head_dim_v, rung, fmt::format("{}, that of q", p.head_dim));
  }
  return std::nullopt;
}

/// A workspace beyond what the rung wants to take.
std::optional<std::string> workspace_lack(const Rung& rung, const core::Problem& p) {
  const auto workspace = p.is_backward ? rung.backward_workspace : rung.forward_workspace;
  const std::size_t bytes = workspace == nullptr ? 0 : workspace(p);
  if (bytes <= rung.max_workspace) return std::nullopt;
  const auto lengths = fmt::format("{} sequences, {} heads, seqlen_q {}, seqlen_k {}, a workspace of {} bytes",
                                   p.num_sequences, p.num_heads_q, p.max_seqlen_q, p.max_seqlen_k, bytes);
  return lack_text("q, k:", lengths, rung, fmt::format("{} bytes", rung.max_workspace));
}

/// The GPU that the tensor is on. @throws Error naming the argument where there is none.
const DeviceInfo& device_of(const Tensor& q) {
  try {
    return device_info(q.device.index);
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("q: on CUDA device {}, but {}", q.device.index, error.what()));
  }
}

}  // namespace

bool is_aligned(const core::Problem& p, int bytes) {
  const auto multiple = [bytes](std::int64_t value) { return value % bytes == 0; };
  for (const auto& [name, t] : core::NamedTensors(p)) {
    const auto size = static_cast<std::int64_t>(dtype_bytes(t->dtype));
    if (!multiple(reinterpret_cast<std::intptr_t>(t->data)) || !multiple(t->shape[3] * size)) return false;
    for (int dim = 0; dim < 3; ++dim) {
      if (t->shape[dim] > 1 && !multiple(t->stride[dim] * size)) return false;
    }
  }
  return true;
}

EnumConstant element_constant(DType dtype) {
  return {"ElementType", dtype == DType::kF16 ? "kF16" : dtype == DType::kBF16 ? "kBF16" : "kF32"};
}

KernelSpec step_spec(const Rung& rung, const Step& step, const RungConfig& config, const Arch& arch) {
  const bool backward = step.args == StepArgs::kBackward || step.args == StepArgs::kBackwardOptions;
  KernelSpec spec = {.name = step.function,
                     .source = backward && rung.backward_source != nullptr ? rung.backward_source : rung.source,
                     .function = step.function,
                     .args = args_name(step.args),
                     .config = {{"kHeadDim", std::int64_t{config.head_dim}},
                                {"kHeadDimV", std::int64_t{config.head_dim_v}},
                                {"kElement", element_constant(config.dtype)},
                                {"kMask", EnumConstant{"MaskKind", mask_name(config.mask)}},
                                {"kNegateScores", config.negate_scores},
                                {"kAligned", config.aligned},
                                {"kThreads", std::int64_t{step.threads}},
                                {"kBlockM", std::int64_t{step.block_m}},
                                {"kBlockN", std::int64_t{step.block_n}},
                                {"kSmemBytes", std::int64_t{step.smem_bytes}}},
                     .arch = arch.target};
  if (rung.takes_options) {
    const auto options = option_constants(config.options);
    spec.config.insert(spec.config.end(), options.begin(), options.end());
    spec.config.push_back({"kColumnParts", std::int64_t{step.column_parts}});
  }
  spec.config.insert(spec.config.end(), step.constants.begin(), step.constants.end());
  spec.dynamic_smem_bytes = step.smem_bytes;
  spec.min_blocks = std::max(1, step.min_blocks);
  spec.toolkit_headers = rung.toolkit_headers;
  return spec;
}

std::optional<std::string> rung_lack(const Rung& rung, const core::Problem& p) {
  if (auto lack = option_lack(rung, p)) return lack;
  if (auto lack = core::dtype_lack(p, rung.name, rung.dtypes)) return lack;
  if (auto lack = head_dim_lack(rung, p)) return lack;
  if (auto lack = workspace_lack(rung, p)) return lack;
  if (rung.alignment > 1 && !is_aligned(p, rung.alignment)) {
    for (const auto& [name, t] : core::NamedTensors(p)) {
      core::Problem one = p;
      one.is_backward = false;
      one.q = one.k = one.v = one.o = *t;
      if (is_aligned(one, rung.alignment)) continue;
      return fmt::format("{}: address {} and strides ({}) elements, compute '{}' allows multiples of {} bytes", name,
                         t->data, fmt::join(t->stride, ", "), rung.name, rung.alignment);
    }
  }
  const DeviceInfo& device = device_of(p.q);
  if (rung.supports != nullptr && !rung.supports(device.arch())) {
    return fmt::format("compute: '{}' has no kernel for {} ({})", rung.name, device.name, device.arch().target);
  }
  return std::nullopt;
}

}  // namespace attend::cuda
