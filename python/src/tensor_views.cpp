#include "tensor_views.hpp"

#include <algorithm>
#include <cstddef>
#include <optional>

namespace attend::python {
namespace {

using nb::dlpack::dltensor;

bool is_bfloat16(const dltensor& x) {
  return static_cast<nb::dlpack::dtype_code>(x.dtype.code) == nb::dlpack::dtype_code::Bfloat;
}

bool has_elements(const dltensor& x) {
  return x.data != nullptr && std::find(x.shape, x.shape + x.ndim, 0) == x.shape + x.ndim;
}

/// Returns the dtype of the tensor if GPUs support it; otherwise nothing.
std::optional<DType> dtype_of(const dltensor& x) {
  if (is_bfloat16(x)) return DType::kBF16;
  if (is_float(x, 16)) return DType::kF16;
  if (is_float(x, 32)) return DType::kF32;
  return std::nullopt;
}

/// Returns whether the last dimension of the tensor is contiguous and GPUs support its dtype.
bool has_rows(const dltensor& x) {
  return x.strides[x.ndim - 1] == 1 && dtype_of(x).has_value() && has_elements(x);
}

/// Returns a view of a tensor with the dimensions (batch, heads, rows, width). `at` contains the position of each of
/// these dimensions in the tensor. If a position is -1, the dimension has size 1.
Tensor view_of(const dltensor& x, const std::array<int, 4>& at) {
  Tensor t;
  t.data = static_cast<std::byte*>(x.data) + x.byte_offset;
  t.dtype = dtype_of(x).value();
  if (is_on_gpu(x)) t.device = {DeviceType::kCUDA, x.device.device_id};
  for (std::size_t d = 0; d < at.size(); ++d) {
    t.shape[d] = at[d] < 0 ? 1 : x.shape[at[d]];
    t.stride[d] = at[d] < 0 ? 1 : x.strides[at[d]];
  }
  return t;
}

}  // namespace

bool is_on_gpu(const dltensor& x) {
  return x.device.device_type == nb::device::cuda::value;
}

bool is_float(const dltensor& x, int bits) {
  return static_cast<nb::dlpack::dtype_code>(x.dtype.code) == nb::dlpack::dtype_code::Float && x.dtype.bits == bits;
}

bool is_dense_4d(const dltensor& x) {
  return x.ndim == 4 && has_rows(x);
}

Tensor heads_of(const dltensor& x, Layout layout) {
  return view_of(x, layout == Layout::kBhsd ? std::array{0, 1, 2, 3} : std::array{0, 2, 1, 3});
}

std::optional<std::array<Tensor, 3>> parts_of(const dltensor& qkv) {
  if (qkv.ndim != 5 || qkv.shape[2] != 3 || !has_rows(qkv)) return std::nullopt;
  std::array<Tensor, 3> parts;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    parts[i] = view_of(qkv, {0, 3, 1, 4});
    const std::int64_t elements = static_cast<std::int64_t>(i) * qkv.strides[2];
    parts[i].data = static_cast<std::byte*>(parts[i].data) + elements * (qkv.dtype.bits / 8);
  }
  return parts;
}

std::optional<Tensor> rows_of(const dltensor& x) {
  if (x.ndim != 3 || !is_float(x, 32) || !has_elements(x)) return std::nullopt;
  return view_of(x, {0, 1, 2, -1});
}

}  // namespace attend::python
