// A non-owning view of a four-dimensional tensor: what every public function takes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace attend {

/// Element types. kF64 is taken by the `reference` backend only; kBool (one byte, 0 or 1) by masks only.
enum class DType : std::uint8_t { kF32, kF16, kBF16, kF64, kBool };

/// Bytes of one element.
[[nodiscard]] constexpr std::int64_t dtype_bytes(DType dtype) noexcept {
  switch (dtype) {
    case DType::kF32:
      return 4;
    case DType::kF16:
    case DType::kBF16:
      return 2;
    case DType::kF64:
      return 8;
    case DType::kBool:
      return 1;
  }
  return 0;
}

/// "f32", "f16", "bf16", "f64", "bool": the names of the command line, the files and the messages.
[[nodiscard]] constexpr const char* dtype_name(DType dtype) noexcept {
  switch (dtype) {
    case DType::kF32:
      return "f32";
    case DType::kF16:
      return "f16";
    case DType::kBF16:
      return "bf16";
    case DType::kF64:
      return "f64";
    case DType::kBool:
      return "bool";
  }
  return "?";
}

enum class DeviceType : std::uint8_t { kCPU, kCUDA };

struct Device {
  DeviceType type = DeviceType::kCPU;
  int index = 0;
  bool operator==(const Device&) const = default;
};

using Shape = std::array<std::int64_t, 4>;  ///< (batch, heads, seqlen, head_dim), in elements

/// Strides of a dense row-major tensor of `shape`, in elements. BHSD order.
[[nodiscard]] constexpr Shape contiguous_strides(const Shape& shape) noexcept {
  return {shape[1] * shape[2] * shape[3], shape[2] * shape[3], shape[3], 1};
}

/// A view: the caller owns the memory and keeps it alive until the call (or, on a GPU, the stream) is done with it.
/// Dimensions are always (batch, heads, seqlen, head_dim); a BSHD buffer is the same view with other strides.
/// Strides are in elements, >= 0, and the last one is 1. Inputs may have stride 0 (broadcast); outputs may not.
struct Tensor {
  void* data = nullptr;
  DType dtype = DType::kF32;
  Device device = {};
  Shape shape = {0, 0, 0, 0};
  Shape stride = {0, 0, 0, 1};

  [[nodiscard]] constexpr std::int64_t numel() const noexcept { return shape[0] * shape[1] * shape[2] * shape[3]; }

  /// A dense (batch, heads, seqlen, head_dim) view of `data`.
  template <class T>
  [[nodiscard]] static constexpr Tensor bhsd(T* data, DType dtype, const Shape& shape, Device device = {}) noexcept {
    return {const_cast<void*>(static_cast<const void*>(data)), dtype, device, shape, contiguous_strides(shape)};
  }

  /// A view of a dense (batch, seqlen, heads, head_dim) buffer. `shape` is still (batch, heads, seqlen, head_dim).
  template <class T>
  [[nodiscard]] static constexpr Tensor bshd(T* data, DType dtype, const Shape& shape, Device device = {}) noexcept {
    const Shape stride = {shape[1] * shape[2] * shape[3], shape[3], shape[1] * shape[3], 1};
    return {const_cast<void*>(static_cast<const void*>(data)), dtype, device, shape, stride};
  }
};

}  // namespace attend
