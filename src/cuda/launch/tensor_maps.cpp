#include "cuda/launch/tensor_maps.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "attend/error.hpp"
#include "cuda/driver/kernel.hpp"
#include "cuda/launch/facts.hpp"
#include "kernels/common/element_info.cuh"
#include "kernels/isa/smem_address.cuh"

namespace attend::cuda {
namespace {

// Addresses and strides must be multiples of this number of bytes.
constexpr std::int64_t kMultiple = 16;
constexpr std::int64_t kMostStride = std::int64_t{1} << 40;  // in bytes; this is the limit of cuTensorMapEncodeTiled

static_assert(kPanelBytes == kSwizzleBytes);

TensorMapType map_type(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return TensorMapType::kFloat32;
    case DType::kF16:
      return TensorMapType::kFloat16;
    case DType::kBF16:
      return TensorMapType::kBfloat16;
    case DType::kF8E4M3:
    case DType::kI8:
      return TensorMapType::kUint8;
    default:
      throw Error(ErrorCode::kInternal, fmt::format("tensor map: no type {}", dtype_name(dtype)));
  }
}

struct MapSource {
  const Tensor& t;
  const void* somewhere;

  [[nodiscard]] DevicePointer address() const {
    return reinterpret_cast<DevicePointer>(t.numel() == 0 ? somewhere : t.data);
  }
  [[nodiscard]] std::uint32_t panel_columns() const {
    return static_cast<std::uint32_t>(kPanelBytes / dtype_bytes(t.dtype));
  }
  [[nodiscard]] std::uint64_t size(std::size_t dim) const {
    return static_cast<std::uint64_t>(std::max<std::int64_t>(1, t.shape[dim]));
  }
  /// Returns the stride in bytes. If the dimension has one element or the tensor has no elements, the stride is never
  /// used, and any legal value is returned.
  [[nodiscard]] std::uint64_t stride(std::size_t dim) const {
    if (t.shape[dim] <= 1 || t.numel() == 0) return kPanelBytes;
    return static_cast<std::uint64_t>(t.stride[dim] * dtype_bytes(t.dtype));
  }
};

constexpr const char* kAllowed = "multiples of 16 bytes, none of them 0";

}  // namespace

bool has_row_map(const Tensor& t) {
  if (t.numel() == 0) return true;  // an empty tensor is never loaded
  const std::int64_t bytes = dtype_bytes(t.dtype);
  if (reinterpret_cast<std::intptr_t>(t.data) % kMultiple != 0) return false;
  for (std::size_t dim = 0; dim < 3; ++dim) {
    if (t.shape[dim] <= 1) continue;
    const std::int64_t stride = t.stride[dim] * bytes;
    if (stride <= 0 || stride % kMultiple != 0 || stride >= kMostStride) return false;
  }
  return true;
}

TensorMapArg row_map(const Tensor& t, int rows, const void* somewhere, TensorMapPromotion promotion) {
  const MapSource source = {t, somewhere};
  const TensorMapSpec spec = {.type = map_type(t.dtype),
                              .rank = 4,
                              .address = source.address(),
                              .dims = {source.size(3), source.size(2), source.size(1), source.size(0)},
                              .strides = {source.stride(2), source.stride(1), source.stride(0)},
                              .box = {source.panel_columns(), static_cast<std::uint32_t>(rows), 1, 1},
                              .promotion = promotion};
  return std::bit_cast<TensorMapArg>(encode_tensor_map(spec));
}

TensorMapArg panel_map(const Tensor& t, int rows, const void* somewhere) {
  const MapSource source = {t, somewhere};
  const std::uint32_t columns = source.panel_columns();
  const std::uint64_t panels = source.size(3) / columns;
  const TensorMapSpec spec = {
      .type = map_type(t.dtype),
      .rank = 5,
      .address = source.address(),
      .dims = {columns, source.size(2), panels, source.size(1), source.size(0)},
      .strides = {source.stride(2), kPanelBytes, source.stride(1), source.stride(0)},
      .box = {columns, static_cast<std::uint32_t>(rows), static_cast<std::uint32_t>(panels), 1, 1}};
  return std::bit_cast<TensorMapArg>(encode_tensor_map(spec));
}

std::optional<core::Lack> tensor_map_lack(const core::Problem& p) {
  for (const auto& [name, tensor] : core::NamedTensors(p)) {
    if (!has_row_map(*tensor)) return core::Lack{name, "address", tensor, kAllowed};
  }
  return std::nullopt;
}

Tensor stored_bias(const core::Problem& p) {
  Tensor bias = *p.bias;
  for (std::size_t dim = 0; dim < 2; ++dim) {
    if (bias.stride[dim] == 0) bias.shape[dim] = 1;
  }
  return bias;
}

std::optional<core::Lack> bias_map_lack(const core::Problem& p) {
  if (has_row_map(stored_bias(p))) return std::nullopt;
  return core::Lack{"bias", "address", &*p.bias, kAllowed};
}

std::optional<core::Lack> dbias_map_lack(const core::Problem& p) {
  if (has_row_map(*p.dbias)) return std::nullopt;
  return core::Lack{"dbias", "address", &*p.dbias, kAllowed};
}

}  // namespace attend::cuda
