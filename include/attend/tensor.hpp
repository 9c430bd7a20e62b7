// Views of four-dimensional tensors, which do not own memory. Tensor is for memory that a function writes, ConstTensor
// for memory that it reads.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace attend {

/// Element types. Only the `reference` backend supports kF64. kBool (one byte, 0 or 1) is allowed only for masks.
/// kI8 is allowed only for caches of keys and values (attend/serving.hpp). kI32 and kI64 are allowed only for tensors
/// of score functions (attend/score_function.hpp). kF8E4M3 is allowed for caches, and for q, k and v of a forward call
/// on a Hopper GPU. It is the 8-bit float that is also called float8_e4m3fn.
/// Its exponent has 4 bits and a bias of 7, and its fraction has 3 bits. It has no infinity.
/// Its NaNs are 0x7f and 0xff, and its largest number is 448.
enum class DType : std::uint8_t { kF32, kF16, kBF16, kF64, kBool, kF8E4M3, kI8, kI32, kI64 };

/// Returns the number of bytes of one element.
[[nodiscard]] constexpr std::int64_t dtype_bytes(DType dtype) noexcept {
  switch (dtype) {
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kF16:
    case DType::kBF16:
      return 2;
    case DType::kF64:
    case DType::kI64:
      return 8;
    case DType::kBool:
    case DType::kF8E4M3:
    case DType::kI8:
      return 1;
  }
  return 0;
}

/// Returns "f32", "f16", "bf16", "f64", "bool", "f8e4m3", "i8", "i32" or "i64". The command line, file formats and
/// error messages use these names.
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
    case DType::kF8E4M3:
      return "f8e4m3";
    case DType::kI8:
      return "i8";
    case DType::kI32:
      return "i32";
    case DType::kI64:
      return "i64";
  }
  return "?";
}

/// Type of device that holds memory.
enum class DeviceType : std::uint8_t { kCPU, kCUDA };

/// A CPU, or a GPU and its number.
struct Device {
  DeviceType type = DeviceType::kCPU;  ///< CPU or GPU
  int index = 0;                       ///< number of the GPU; 0 for a CPU
  bool operator==(const Device&) const = default;
};

/// A CUDA stream (CUstream). Calls with tensors on a CPU ignore it.
using Stream = void*;

using Shape = std::array<std::int64_t, 4>;  ///< extents of (batch, heads, seqlen, head_dim)

/// Returns the strides, in elements, of a dense row-major tensor of `shape` in BHSD order.
[[nodiscard]] constexpr Shape contiguous_strides(const Shape& shape) noexcept {
  return {shape[1] * shape[2] * shape[3], shape[2] * shape[3], shape[3], 1};
}

/// A view of memory that the caller owns. The caller must keep the memory alive until the call is done. On a GPU, a
/// call is done when the stream has finished its work. Dimensions are always (batch, heads, seqlen, head_dim). A BSHD
/// buffer is the same view with other strides. Strides are in elements and >= 0, and the last stride is 1. Inputs may
/// have stride 0 (broadcast); outputs may not.
///
/// `Void` is void or const void. Callers should use the names Tensor and ConstTensor, defined below. A Tensor converts
/// to a ConstTensor, but not the reverse.
template <class Void>
struct TensorView {
  Void* data = nullptr;         ///< address of the element whose subscripts are all 0
  DType dtype = DType::kF32;    ///< type of every element
  Device device = {};           ///< device that holds the memory
  Shape shape = {0, 0, 0, 0};   ///< number of elements in each dimension
  Shape stride = {0, 0, 0, 1};  ///< distance in elements along each dimension

  /// Returns the number of elements.
  [[nodiscard]] constexpr std::int64_t numel() const noexcept { return shape[0] * shape[1] * shape[2] * shape[3]; }

  /// Converts to a read-only view of the same memory.
  // NOLINTNEXTLINE(google-explicit-constructor)
  [[nodiscard]] constexpr operator TensorView<const void>() const noexcept requires(!std::is_const_v<Void>) {
    return {data, dtype, device, shape, stride};
  }

  /// Type of a view made from a `T*`: a ConstTensor if T or the view itself is const.
  template <class T>
  using Of = TensorView<std::conditional_t<std::is_const_v<T>, const void, Void>>;

  /// Returns a view of a dense (batch, heads, seqlen, head_dim) buffer. If T is const, the view is a ConstTensor.
  template <class T>
  [[nodiscard]] static constexpr Of<T> bhsd(T* data, DType dtype, const Shape& shape, Device device = {}) noexcept {
    return {data, dtype, device, shape, contiguous_strides(shape)};
  }

  /// Returns a view of a dense (batch, seqlen, heads, head_dim) buffer. `shape` is still (batch, heads, seqlen,
  /// head_dim). If T is const, the view is a ConstTensor.
  template <class T>
  [[nodiscard]] static constexpr Of<T> bshd(T* data, DType dtype, const Shape& shape, Device device = {}) noexcept {
    return {data, dtype, device, shape, {shape[1] * shape[2] * shape[3], shape[3], shape[1] * shape[3], 1}};
  }
};

using Tensor = TensorView<void>;             ///< view of memory that a call may write
using ConstTensor = TensorView<const void>;  ///< view of memory that a call only reads

}  // namespace attend
