#include "core/problem_checks.hpp"

#include <fmt/ranges.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>

#include "core/dtype_traits.hpp"

namespace attend::core {
namespace {

__extension__ using Wide = __int128;  // products of sizes and strides may exceed 64 bits

constexpr Wide kMaxBytes = Wide{1} << 62;  // larger than any memory; with this limit, all byte offsets fit into int64

/// Returns the number of bytes from the first element to the end of the last.
Wide extent_bytes(const Tensor& t) {
  Wide last = 0;
  for (std::size_t d = 0; d < 4; ++d) {
    if (t.shape[d] == 0) return 0;
    last += Wide{t.shape[d] - 1} * t.stride[d];
  }
  return (last + 1) * dtype_bytes(t.dtype);
}

/// The address range that a tensor's elements span.
struct Extent {
  std::uintptr_t begin, bytes;

  explicit Extent(const Tensor& t)
      : begin(reinterpret_cast<std::uintptr_t>(t.data)), bytes(static_cast<std::uintptr_t>(extent_bytes(t))) {}

  [[nodiscard]] bool overlaps(const Extent& other) const {
    return bytes != 0 && other.bytes != 0 && begin < other.begin + other.bytes && other.begin < begin + bytes;
  }
};

/// Divides memory into periods of `period` bytes, starting at the data of `t`. Returns n if all elements of the tensor
/// lie in the first n bytes of a period. Returns nothing if n would exceed the period.
std::optional<std::int64_t> bytes_of_period(const Tensor& t, std::int64_t period) {
  if (period == 0) return std::nullopt;
  const std::int64_t bytes = dtype_bytes(t.dtype);
  Wide width = bytes;
  for (std::size_t d = 0; d < 4; ++d) {
    if (t.shape[d] < 2) continue;
    const Wide stride = Wide{t.stride[d]} * bytes;
    if (stride % period != 0) width += (t.shape[d] - 1) * stride;
  }
  if (width > period) return std::nullopt;
  return static_cast<std::int64_t>(width);
}

}  // namespace

std::string shape_text(const Shape& shape) {
  std::string text = "(";
  for (std::size_t d = 0; d < 4; ++d) {
    text += d == 0 ? "" : ", ";
    text += shape[d] < 0 ? "any" : fmt::to_string(shape[d]);
  }
  return text + ")";
}

void check_shape(const char* name, const Tensor& t, const Shape& wanted, const char* meaning) {
  for (std::size_t d = 0; d < 4; ++d) {
    if (wanted[d] != kAny && t.shape[d] != wanted[d]) {
      refuse("{}: shape {}, allowed {} = {}", name, shape_text(t.shape), meaning, shape_text(wanted));
    }
  }
}

void check_head_dim(const char* name, const Tensor& t, std::int64_t most) {
  if (t.shape[3] < 1 || t.shape[3] > most) refuse("{}: head_dim {}, allowed 1 to {}", name, t.shape[3], most);
}

void check_heads(const char* k_name, const Tensor& k, const Tensor& q) {
  const std::int64_t heads_q = q.shape[1];
  const std::int64_t heads_k = k.shape[1];
  const bool divides = heads_k == 0 ? heads_q == 0 : heads_q % heads_k == 0;
  if (!divides) refuse("{}: num_heads_k {}, allowed a divisor of num_heads_q {}", k_name, heads_k, heads_q);
}

void check_scale(const std::optional<double>& scale) {
  // Upper limit, because most backends compute in float32.
  constexpr double kLargest = std::numeric_limits<float>::max();
  if (scale && !(std::abs(*scale) <= kLargest)) {
    refuse("scale: {}, allowed finite numbers up to {:.3g} in magnitude", *scale, kLargest);
  }
}

void check_window(std::int64_t window_left, std::int64_t window_right) {
  for (const auto& [name, window] : {std::pair{"window_left", window_left}, {"window_right", window_right}}) {
    if (window < kOpenWindow) refuse("{}: {}, allowed >= 0, or -1 for open", name, window);
  }
}

void check_tensor(const char* name, const Tensor& t, Device device, const char* owner) {
  Wide numel = 1;
  for (std::size_t d = 0; d < 4; ++d) {
    if (t.shape[d] < 0 || t.shape[d] > kMaxLength) {
      refuse("{}: size {} in dimension {}, allowed 0 to {}", name, t.shape[d], d, kMaxLength);
    }
    numel *= t.shape[d];
  }
  // Strides are checked only after all sizes are valid, because dense strides are products of sizes and could overflow.
  for (std::size_t d = 0; d < 4; ++d) {
    if (t.stride[d] < 0) refuse("{}: stride {} in dimension {}, allowed >= 0", name, t.stride[d], d);
  }
  if (t.shape[3] > 1 && t.stride[3] != 1) refuse("{}: last stride {}, allowed 1", name, t.stride[3]);
  if (numel * dtype_bytes(t.dtype) > kMaxBytes || extent_bytes(t) > kMaxBytes) {
    refuse("{}: shape {} spans more than 2^62 bytes", name, shape_text(t.shape));
  }
  if (t.device != device) {
    const auto type_name = [](Device d) { return d.type == DeviceType::kCPU ? "cpu" : "cuda"; };
    refuse("{}: on {} {}, allowed the device of {}, {} {}", name, type_name(t.device), t.device.index, owner,
           type_name(device), device.index);
  }
  if (t.data == nullptr && numel != 0) refuse("{}: null data with shape {}", name, shape_text(t.shape));
}

void check_float_tensor(const char* name, const Tensor& t, Device device) {
  if (!is_float(t.dtype)) {
    refuse("{}: dtype {}, allowed f32, f16, bf16 (f64 with compute 'reference')", name, dtype_name(t.dtype));
  }
  check_tensor(name, t, device);
}

void check_lse_like(const char* name, const Tensor& t, const Problem& p) {
  check_tensor(name, t, p.q.device);
  const bool dtype_fits = t.dtype == DType::kF32 || (t.dtype == DType::kF64 && p.q.dtype == DType::kF64);
  if (!dtype_fits)
    refuse("{}: dtype {}, allowed f32{}", name, dtype_name(t.dtype), p.q.dtype == DType::kF64 ? " or f64" : "");
  const Shape wanted = {p.q.shape[0], p.q.shape[1], p.q.shape[2], 1};
  if (t.shape != wanted) {
    refuse("{}: shape {}, allowed (batch, num_heads_q, seqlen_q, 1) = {}", name, shape_text(t.shape),
           shape_text(wanted));
  }
}

void check_row_offsets(const RowOffsets& rows) {
  const std::int32_t* offsets = rows.offsets;
  if (offsets[0] != 0) refuse("{}: first entry {}, allowed 0", rows.name, offsets[0]);
  for (std::int64_t s = 0; s < rows.num_sequences; ++s) {
    const std::int64_t length = std::int64_t{offsets[s + 1]} - offsets[s];
    if (length < 0) {
      refuse("{}: entry {} is {} after {}, allowed non-decreasing", rows.name, s + 1, offsets[s + 1], offsets[s]);
    }
    if (length > rows.most) {
      refuse("{}: sequence {} has length {}, allowed <= {} = {}", rows.name, s, length, rows.most_name, rows.most);
    }
  }
  if (offsets[rows.num_sequences] > rows.num_rows) {
    refuse("{}: last entry {}, allowed at most the number of rows of {}, {}", rows.name, offsets[rows.num_sequences],
           rows.rows_name, rows.num_rows);
  }
}

void check_output_strides(const char* name, const Tensor& t) {
  for (std::size_t d = 0; d < 4; ++d) {
    // A tensor without elements is never written, and its dense strides may be 0.
    if (t.numel() != 0 && t.shape[d] > 1 && t.stride[d] == 0) {
      refuse("{}: stride 0 in dimension {} of an output, allowed > 0", name, d);
    }
  }
}

bool may_share_bytes(const Tensor& a, const Tensor& b) {
  const Extent of_a(a), of_b(b);
  if (!of_a.overlaps(of_b)) return false;
  for (const Tensor* t : {&a, &b}) {
    for (std::size_t d = 0; d < 3; ++d) {
      if (t->shape[d] < 2) continue;
      const std::int64_t period = t->stride[d] * dtype_bytes(t->dtype);
      const std::optional<std::int64_t> bytes_of_a = bytes_of_period(a, period);
      const std::optional<std::int64_t> bytes_of_b = bytes_of_period(b, period);
      if (!bytes_of_a || !bytes_of_b) continue;
      const auto distance = static_cast<std::int64_t>(of_b.begin - of_a.begin);  // below 2^62, because a and b overlap
      const std::int64_t b_begins = (distance % period + period) % period;
      if (b_begins >= *bytes_of_a && b_begins + *bytes_of_b <= period) return false;
    }
  }
  return true;
}

bool is_same_view(const Tensor& a, const Tensor& b) {
  return a.data == b.data && a.dtype == b.dtype && a.device == b.device && a.shape == b.shape && a.stride == b.stride;
}

void check_outputs(std::span<const NamedTensor> outputs, std::span<const NamedTensor> inputs) {
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const auto& [name, out] = outputs[i];
    check_output_strides(name, *out);
    const Extent written(*out);
    for (const auto& [input_name, input] : inputs) {
      if (written.overlaps(Extent(*input)))
        refuse("{}: shares memory with {}, allowed a separate buffer", name, input_name);
    }
    for (std::size_t j = 0; j < i; ++j) {
      const auto& [other_name, other] = outputs[j];
      if (out->data == other->data && out->numel() != 0 && other->numel() != 0) {
        refuse("{}: has the address of {}, allowed a separate buffer", name, other_name);
      }
    }
  }
}

}  // namespace attend::core
