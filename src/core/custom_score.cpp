#include "core/custom_score.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "core/dtype_traits.hpp"
#include "core/printed.hpp"
#include "core/problem_checks.hpp"
#include "core/score_function_state.hpp"

namespace attend::core {
namespace {

std::string place_of(Device device) {
  return fmt::format("{} {}", device.type == DeviceType::kCPU ? "cpu" : "cuda", device.index);
}

void check_device(const std::string& what, Device found, Device wanted) {
  if (found == wanted) return;
  refuse("{}: on {}, allowed the device of q, {}", what, place_of(found), place_of(wanted));
}

/// Returns a view of the same elements with non-negative strides. Negated dimensions are reversed.
Tensor with_rising_strides(Tensor t) {
  for (std::size_t d = 0; d < t.shape.size(); ++d) {
    if (t.stride[d] >= 0) continue;
    t.data = static_cast<char*>(t.data) + (t.shape[d] - 1) * t.stride[d] * dtype_bytes(t.dtype);
    t.stride[d] = -t.stride[d];
  }
  return t;
}

/// Returns whether a byte offset could exceed int64. The check assumes elements of 8 bytes, because gradients are
/// summed in an array of float64.
bool is_too_large(const Tensor& t) {
  constexpr double kMostBytes = 0x1p62;
  double elements = 1, reach = 0;
  for (std::size_t d = 0; d < t.shape.size(); ++d) {
    elements *= static_cast<double>(t.shape[d]);
    reach += static_cast<double>(t.stride[d]) * static_cast<double>(t.shape[d] - 1);
  }
  return std::max(elements, reach) * sizeof(double) >= kMostBytes;
}

/// Returns true only if no two elements share an address. The function tests a sufficient condition: each stride
/// exceeds the span of all dimensions with smaller strides.
bool has_elements_apart(const Tensor& t) {
  std::vector<std::pair<std::int64_t, std::int64_t>> strides_and_extents;
  for (std::size_t d = 0; d < t.shape.size(); ++d) {
    if (t.shape[d] > 1) strides_and_extents.emplace_back(t.stride[d], t.shape[d]);
  }
  std::sort(strides_and_extents.begin(), strides_and_extents.end());
  std::int64_t last = 0;  // offset of the last element if only the dimensions visited so far existed
  for (const auto& [stride, extent] : strides_and_extents) {
    if (stride <= last) return false;
    last += stride * (extent - 1);
  }
  return true;
}

/// Checks the gradient tensor that was passed for captured[capture], and returns it as a view.
Tensor checked_gradient(const CustomScore& score, std::size_t capture, const StridedTensor& given, Device device) {
  const std::string what = fmt::format("captures: '{}'", score.names[capture]);
  const Tensor& of = score.captured[capture];
  if (!is_float(of.dtype)) {
    refuse("{}: of dtype {}, which has no gradient, allowed captures of floats", what, dtype_name(of.dtype));
  }
  if (given.dtype != DType::kF32 && given.dtype != DType::kF64) {
    refuse("{}: dtype {}, allowed f32, f64", what, dtype_name(given.dtype));
  }
  Tensor gradient = {given.data, given.dtype, given.device, {1, 1, 1, 1}, {0, 0, 0, 0}};
  const std::size_t rank = given.shape.size();
  if (rank > gradient.shape.size()) refuse("{}: {} dimensions, allowed the capture's", what, rank);
  if (!given.stride.empty() && given.stride.size() != rank) {
    refuse("{}: {} strides, allowed one for each of {} dimensions", what, given.stride.size(), rank);
  }
  std::copy(given.shape.begin(), given.shape.end(), gradient.shape.begin());
  if (gradient.shape != of.shape) {
    refuse("{}: shape {}, allowed the capture's {}", what, shape_text(gradient.shape), shape_text(of.shape));
  }
  for (std::size_t d = 0; d < given.stride.size(); ++d) {
    if (given.stride[d] < 0) refuse("{}: stride {}, allowed >= 0", what, given.stride[d]);
    if (given.shape[d] > 1) gradient.stride[d] = given.stride[d];
  }
  if (is_too_large(gradient)) refuse("{}: shape {} spans more than 2^62 bytes", what, shape_text(gradient.shape));
  std::int64_t dense = 1;
  for (std::size_t d = rank; d-- > 0 && given.stride.empty(); dense *= of.shape[d]) gradient.stride[d] = dense;
  if (given.data == nullptr) refuse("{}: null data", what);
  check_device(what, given.device, device);
  return gradient;
}

/// Checks that a gradient shares no element with another tensor and that its elements do not overlap. The gradients are
/// written one after another, so a gradient that overlaps an earlier one would overwrite it.
void check_apart(const NamedTensor& gradient, std::span<const NamedTensor> others) {
  if (!has_elements_apart(*gradient.tensor)) {
    refuse("{}: strides with which elements share memory, allowed strides without overlap", gradient.name);
  }
  for (const NamedTensor& other : others) {
    if (!may_share_bytes(*gradient.tensor, *other.tensor)) continue;
    refuse("{}: shares memory with {}, allowed a separate buffer", gradient.name, other.name);
  }
}

/// Returns whether the option alibi_slopes can replace the function in this problem. Only GPUs use the replacement.
/// There the option is faster than the function, and every kernel supports both. The kernels must also support the
/// other options of the problem together with alibi_slopes.
bool is_alibi(const Problem& p, const CustomScore& score) {
  if (score.alibi == AlibiForm::kNone || p.q.device.type != DeviceType::kCUDA) return false;
  const bool is_causal = p.window_right == 0, is_open = p.window_left < 0 && p.window_right < 0;
  const bool sees_distance = is_causal || (is_open && score.alibi == AlibiForm::kDistance);
  const bool is_alone = !p.bias && !p.mask && !p.alibi_slopes && !p.transforms_scores() && p.dropout_p == 0;
  const Tensor& slopes = score.captured.front();
  return sees_distance && is_alone && !p.varlen && p.max_seqlen_q == p.max_seqlen_k && slopes.dtype == DType::kF32 &&
         slopes.shape[0] == p.num_heads_q && slopes.stride[0] >= 0;
}

/// Returns the single capture of the function in the form of Problem::alibi_slopes.
Tensor slopes_of_heads(const Problem& p, const CustomScore& score) {
  Tensor slopes = score.captured.front();
  const std::int64_t stride = slopes.stride[0];
  slopes.shape = {p.num_sequences, p.num_heads_q, 1, 1};
  slopes.stride = {0, stride, 0, 0};
  return slopes;
}

}  // namespace

CaptureForm form_of(const Tensor& captured, std::size_t rank) {
  constexpr double kNear = 0x1p31;
  double reach = 0;
  for (std::size_t d = 0; d < rank; ++d) {
    reach += std::abs(static_cast<double>(captured.stride[d])) * static_cast<double>(captured.shape[d]);
  }
  return {.is_near = reach<kNear, .is_unit = rank> 0 && captured.stride[rank - 1] == 1};
}

void resolve_score_function(Problem& p, const Params& params, bool is_whole, bool wants_gradients) {
  if (params.score == nullptr) return;
  if (!is_whole) refuse("score: given, allowed outside of a ring only");
  const CustomScore& score = params.score->state()->custom;
  for (std::size_t n = 0; n < score.captured.size(); ++n) {
    check_device(fmt::format("score: capture '{}'", score.names[n]), score.captured[n].device, p.q.device);
  }
  // Options are applied before the function, so alibi_slopes can replace the function only if no other option changes
  // scores.
  const bool is_alone = !p.bias && !p.alibi_slopes && !p.transforms_scores() && score.captured.empty();
  if (score.softcap != 0 && is_alone) {
    p.transform_cap = score.softcap;
    return;
  }
  if (!wants_gradients && p.block_mask == nullptr && is_alibi(p, score)) {
    p.alibi_slopes = slopes_of_heads(p, score);
    return;
  }
  p.custom_score = &score;
}

void resolve_captured_gradients(Problem& p, const std::vector<CaptureGradient>& given) {
  if (given.empty()) return;
  if (p.custom_score == nullptr) refuse("captures: given, allowed with a params.score that reads some only");
  const std::vector<std::string>& names = p.custom_score->names;
  for (const CaptureGradient& one : given) {
    const auto found = std::find(names.begin(), names.end(), one.name);
    if (found == names.end()) {
      refuse("captures: {}, allowed the captures of params.score: {}", printed(one.name),
             names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", ")));
    }
    const auto capture = static_cast<std::size_t>(found - names.begin());
    for (const CapturedGradient& other : p.captured_gradients) {
      if (other.capture == capture) refuse("captures: '{}' twice, allowed once", one.name);
    }
    p.captured_gradients.push_back({capture, checked_gradient(*p.custom_score, capture, one.gradient, p.q.device)});
  }
}

void check_captured_memory(const Problem& p, const Params& params, std::span<const NamedTensor> outputs,
                           std::span<const NamedTensor> inputs) {
  if (params.score == nullptr) return;
  const CustomScore& score = params.score->state()->custom;
  std::vector<Tensor> captured;
  std::vector<std::string> names;
  for (const Tensor& t : score.captured) captured.push_back(with_rising_strides(t));
  for (const std::string& name : score.names) names.push_back(fmt::format("capture '{}'", name));
  std::vector<NamedTensor> read(inputs.begin(), inputs.end()), read_by_score;
  for (std::size_t n = 0; n < captured.size(); ++n) read_by_score.push_back({names[n].c_str(), &captured[n]});
  check_outputs(outputs, read_by_score);
  if (p.captured_gradients.empty()) return;
  read.insert(read.end(), read_by_score.begin(), read_by_score.end());
  read.insert(read.end(), outputs.begin(), outputs.end());
  std::vector<std::string> gradient_names;
  std::vector<NamedTensor> written;
  for (const CapturedGradient& g : p.captured_gradients) {
    gradient_names.push_back(fmt::format("captures: '{}'", p.custom_score->names[g.capture]));
  }
  for (std::size_t n = 0; n < gradient_names.size(); ++n) {
    written.push_back({gradient_names[n].c_str(), &p.captured_gradients[n].gradient});
  }
  check_outputs(written, read);
  for (std::size_t n = 0; n < written.size(); ++n) check_apart(written[n], std::span(written).first(n));
}

}  // namespace attend::core
