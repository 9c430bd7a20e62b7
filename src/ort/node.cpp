#include "ort/node.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "core/problem_checks.hpp"

namespace attend::ort {
namespace {

using core::refuse;

std::string text(const Dimensions& shape) {
  return fmt::format("({})", fmt::join(shape, ", "));
}

bool is_float(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16 || dtype == DType::kF64;
}

/// Returns Q, K or V as a view (batch, heads, seqlen, head_dim).
ConstTensor view_of(const char* name, const Input& x, const char* heads_name, std::optional<std::int64_t> heads) {
  if (x.shape.size() == 4) {
    if (heads && *heads != x.shape[1]) {
      refuse("{}: {}, allowed {}, the heads of {}", heads_name, *heads, x.shape[1], name);
    }
    return ConstTensor::bhsd(x.data, x.dtype, {x.shape[0], x.shape[1], x.shape[2], x.shape[3]});
  }
  if (x.shape.size() != 3) refuse("{}: {} dimensions, allowed 3 or 4", name, x.shape.size());
  if (!heads) refuse("{}: missing, allowed a divisor of {}, the last dimension of {}", heads_name, x.shape[2], name);
  if (*heads < 1 || x.shape[2] % *heads != 0) {
    refuse("{}: {}, allowed a divisor of {}, the last dimension of {}", heads_name, *heads, x.shape[2], name);
  }
  return ConstTensor::bshd(x.data, x.dtype, {x.shape[0], *heads, x.shape[1], x.shape[2] / *heads});
}

void check_shapes(const Node& node, const Inputs& inputs) {
  const auto check_rank = [rank = inputs.q.shape.size()](const char* name, const Input& x) {
    if (x.shape.size() != rank) refuse("{}: {} dimensions, allowed {} as Q", name, x.shape.size(), rank);
  };
  check_rank("K", inputs.k);
  check_rank("V", inputs.v);
  const Shape &q = node.q.shape, &k = node.k.shape, &v = node.v.shape;
  if (k[0] != q[0]) refuse("K: batch {}, allowed {} as Q", k[0], q[0]);
  if (v[0] != q[0]) refuse("V: batch {}, allowed {} as Q", v[0], q[0]);
  if (k[3] != q[3]) refuse("K: head_dim {}, allowed {} as Q", k[3], q[3]);
  if (v[1] != k[1]) refuse("V: {} heads, allowed {} as K", v[1], k[1]);
  if (v[2] != k[2]) refuse("V: seqlen {}, allowed {} as K", v[2], k[2]);
  if (k[1] == 0 ? q[1] != 0 : q[1] % k[1] != 0) refuse("Q: {} heads, allowed a multiple of {} as K", q[1], k[1]);
}

std::optional<ConstTensor> past_of(const char* name, const std::optional<Input>& past, const ConstTensor& added) {
  if (!past) return {};
  const Shape& wanted = added.shape;
  const Dimensions& found = past->shape;
  if (found.size() != 4 || found[0] != wanted[0] || found[1] != wanted[1] || found[3] != wanted[3]) {
    refuse("{}: shape {}, allowed ({}, {}, any, {})", name, text(found), wanted[0], wanted[1], wanted[3]);
  }
  return ConstTensor::bhsd(past->data, past->dtype, {found[0], found[1], found[2], found[3]});
}

void read_past(Node& node, const Inputs& inputs) {
  if (inputs.past_key.has_value() != inputs.past_value.has_value()) {
    const bool has_key = inputs.past_key.has_value();
    const std::pair<const char*, const char*> names("past_key", "past_value");
    refuse("{}: missing, allowed with {} only", has_key ? names.second : names.first,
           has_key ? names.first : names.second);
  }
  node.past_key = past_of("past_key", inputs.past_key, node.k);
  node.past_value = past_of("past_value", inputs.past_value, node.v);
  if (node.past_key && node.past_value->shape[2] != node.past_key->shape[2]) {
    refuse("past_value: seqlen {}, allowed {} as past_key", node.past_value->shape[2], node.past_key->shape[2]);
  }
}

void read_mask(Node& node, const std::optional<Input>& mask) {
  if (!mask) return;
  if (mask->dtype != DType::kBool && !is_float(mask->dtype)) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("attn_mask: dtype {}, allowed bool, f32, f16, bf16, f64", dtype_name(mask->dtype)));
  }
  const Dimensions& found = mask->shape;
  const Dimensions wanted = qk_shape(node);
  Shape shape = {1, 1, 1, 1};
  bool fits = !found.empty() && found.size() <= 4;
  if (fits) {
    std::copy(found.begin(), found.end(), shape.end() - static_cast<std::ptrdiff_t>(found.size()));
    fits = shape[3] <= wanted[3];
    for (std::size_t d = 0; d < 3; ++d) fits = fits && (shape[d] == 1 || shape[d] == wanted[d]);
  }
  if (!fits)
    refuse("attn_mask: shape {}, allowed shapes that broadcast to {}; the last dimension may be shorter", text(found),
           text(wanted));
  node.mask = ConstTensor::bhsd(mask->data, mask->dtype, shape);
}

void read_positions(Node& node, const std::optional<Input>& nonpad) {
  const auto batch = static_cast<std::size_t>(node.q.shape[0]);
  node.lengths.assign(batch, node.total);
  node.offsets.assign(batch, node.past_key ? node.past_key->shape[2] : 0);
  if (!nonpad) return;
  if (node.past_key) refuse("nonpad_kv_seqlen: given with past_key, allowed without it only");
  if (nonpad->dtype != DType::kI64 || nonpad->shape != Dimensions{node.q.shape[0]}) {
    refuse("nonpad_kv_seqlen: {} {}, allowed i64 ({})", dtype_name(nonpad->dtype), text(nonpad->shape), batch);
  }
  for (std::size_t b = 0; b < batch; ++b) {
    const std::int64_t length = static_cast<const std::int64_t*>(nonpad->data)[b];
    if (length < 0 || length > node.total) refuse("nonpad_kv_seqlen: {}, allowed 0 to {}", length, node.total);
    node.lengths[b] = length;
    node.offsets[b] = length - node.q.shape[2];
  }
}

void check_attributes(const Attributes& attributes) {
  constexpr std::array<std::int64_t, 4> kPrecisions = {1, 10, 11, 16};  // ONNX's numbers of f32, f16, f64 and bf16
  const auto precision = attributes.softmax_precision.value_or(1);
  if (std::find(kPrecisions.begin(), kPrecisions.end(), precision) == kPrecisions.end()) {
    refuse("softmax_precision: {}, allowed 1, 10, 11, 16", precision);
  }
  const auto mode = attributes.qk_matmul_output_mode;
  if (mode < 0 || mode > 3) refuse("qk_matmul_output_mode: {}, allowed 0 to 3", mode);
  for (const auto& [name, side] : {std::pair{"left_window_size", attributes.left_window_size},
                                   std::pair{"right_window_size", attributes.right_window_size}}) {
    if (side < -1) refuse("{}: {}, allowed >= 0, or -1 for open", name, side);
  }
}

/// Returns the first `rows` rows (or keys) of sequences `first` to `last` of a view.
template <class View>
View part(const View& x, std::int64_t first, std::int64_t last, std::int64_t rows) {
  View result = x;
  using Byte = std::conditional_t<std::is_same_v<View, Tensor>, char, const char>;
  const std::int64_t bytes = first * x.stride[0] * dtype_bytes(x.dtype);
  if (x.data != nullptr) result.data = static_cast<Byte*>(x.data) + bytes;
  result.shape[0] = last - first;
  result.shape[2] = rows;
  return result;
}

/// Returns whether decode should compute the call instead of forward. decode splits the keys over threads, and reads
/// each key once for all query heads of a group.
bool is_decode(const ForwardCall& call) {
  constexpr std::int64_t kMostRows = 8;
  return call.q.shape[2] <= kMostRows && call.k.shape[2] > call.q.shape[2] && call.q.dtype != DType::kF64;
}

DecodeCall decode_call(const ForwardCall& call) {
  return {.q = call.q,
          .k_cache = call.k,
          .v_cache = call.v,
          .o = call.o,
          .params = {.scale = call.params.scale,
                     .causal = call.params.causal,
                     .window_left = call.params.window_left,
                     .window_right = call.params.window_right,
                     .softcap = call.params.softcap}};
}

}  // namespace

Node read(const Attributes& attributes, const Inputs& inputs) {
  check_attributes(attributes);
  Node node;
  node.q = view_of("Q", inputs.q, "q_num_heads", attributes.q_num_heads);
  node.k = view_of("K", inputs.k, "kv_num_heads", attributes.kv_num_heads);
  node.v = view_of("V", inputs.v, "kv_num_heads", attributes.kv_num_heads);
  node.has_three_dimensions = inputs.q.shape.size() == 3;
  check_shapes(node, inputs);
  read_past(node, inputs);
  node.total = node.k.shape[2] + (node.past_key ? node.past_key->shape[2] : 0);
  read_mask(node, inputs.mask);
  read_positions(node, inputs.nonpad_kv_seqlen);
  // Larger than any seqlen, but small enough that sums do not overflow.
  constexpr std::int64_t kWide = std::int64_t{1} << 48;
  node.left = std::min(attributes.left_window_size, kWide);
  node.right = attributes.is_causal != 0 ? 0 : std::min(attributes.right_window_size, kWide);
  node.qk_mode = attributes.qk_matmul_output_mode;
  if (attributes.scale) node.params.scale = *attributes.scale;
  node.params.softcap = attributes.softcap;
  return node;
}

Dimensions y_shape(const Node& node) {
  const auto [batch, heads, seqlen, head_dim] = node.q.shape;
  if (node.has_three_dimensions) return {batch, seqlen, heads * node.v.shape[3]};
  return {batch, heads, seqlen, node.v.shape[3]};
}

Dimensions qk_shape(const Node& node) {
  return {node.q.shape[0], node.q.shape[1], node.q.shape[2], node.total};
}

Dimensions present_shape(const Node& node, const ConstTensor& of) {
  return {of.shape[0], of.shape[1], node.total, of.shape[3]};
}

Tensor y_view(const Node& node, void* data) {
  const Shape shape = {node.q.shape[0], node.q.shape[1], node.q.shape[2], node.v.shape[3]};
  return node.has_three_dimensions ? Tensor::bshd(data, node.q.dtype, shape) : Tensor::bhsd(data, node.q.dtype, shape);
}

Band band(std::int64_t seqlen_q, std::int64_t seqlen_k, std::int64_t offset, std::int64_t left, std::int64_t right) {
  std::int64_t rows = seqlen_q;
  std::int64_t keys = seqlen_k;
  if (right >= 0) {
    keys = right >= keys - rows - offset ? keys : std::max<std::int64_t>(0, rows + offset + right);
    right -= keys - rows - offset;
  }
  if (left >= 0) {
    // number of rows that come after the last row which sees the last key
    const std::int64_t beyond = rows + offset - keys - left;
    if (beyond > 0) {
      rows = std::max<std::int64_t>(0, rows - beyond);
      if (right >= 0) right -= beyond;
    }
    left = beyond > 0 ? 0 : -beyond;
  }
  if (rows == 0 || keys == 0) return {0, 0, -1, -1};
  if (right >= rows - 1) right = -1;
  if (left >= keys - 1) left = -1;
  return {rows, keys, left, right};
}

std::vector<Step> steps(const Node& node, const ConstTensor& keys, const ConstTensor& values, const Tensor& y) {
  std::vector<Step> result;
  const auto batch = static_cast<std::int64_t>(node.lengths.size());
  for (std::int64_t first = 0, last = 0; first < batch; first = last) {
    const std::int64_t length = node.lengths[static_cast<std::size_t>(first)];
    while (last < batch && node.lengths[static_cast<std::size_t>(last)] == length) ++last;
    const std::int64_t seen = node.mask ? std::min(length, node.mask->shape[3]) : length;
    const Band cut = band(node.q.shape[2], seen, node.offsets[static_cast<std::size_t>(first)], node.left, node.right);
    Step& step = result.emplace_back(Step{first, last, cut.rows, {}, {}});
    if (cut.rows == 0 || y.numel() == 0) continue;
    ForwardCall call = {.q = part(node.q, first, last, cut.rows),
                        .k = part(keys, first, last, cut.keys),
                        .v = part(values, first, last, cut.keys),
                        .o = part(y, first, last, cut.rows),
                        .params = node.params};
    call.params.causal = cut.right == 0;
    call.params.window_left = cut.left;
    call.params.window_right = cut.right == 0 ? -1 : cut.right;
    if (node.mask) {
      const bool is_shared = node.mask->shape[0] == 1;
      ConstTensor mask =
          part(*node.mask, is_shared ? 0 : first, is_shared ? 1 : last, std::min(node.mask->shape[2], cut.rows));
      mask.shape[3] = cut.keys;
      (mask.dtype == DType::kBool ? call.params.mask : call.params.bias) = mask;
    }
    step.plan = plan(call);
    if (!node.mask && is_decode(call)) step.decode = decode_call(call);
  }
  return result;
}

void run(const std::vector<Step>& steps, const Tensor& y) {
  const auto row_bytes = static_cast<std::size_t>(y.shape[3] * dtype_bytes(y.dtype));
  for (const Step& step : steps) {
    for (std::int64_t b = step.first; b < step.last; ++b) {
      for (std::int64_t h = 0; h < y.shape[1]; ++h) {
        for (std::int64_t i = step.rows; i < y.shape[2] && row_bytes != 0; ++i) {
          const std::int64_t at = b * y.stride[0] + h * y.stride[1] + i * y.stride[2];
          std::memset(static_cast<char*>(y.data) + at * dtype_bytes(y.dtype), 0, row_bytes);
        }
      }
    }
    if (step.decode) {
      decode(*step.decode);
    } else if (step.plan) {
      step.plan->run();
    }
  }
}

}  // namespace attend::ort
