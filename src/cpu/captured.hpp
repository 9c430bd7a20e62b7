// Views of the tensors that a custom function reads (its captures), for the `cpu` backend.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "attend/tensor.hpp"
#include "core/half.hpp"
#include "expr/graph.hpp"
#include "kernels/attention/score_math.cuh"

namespace attend::cpu {

/// Storage type of an element of a captured tensor.
enum class CapturedType : std::uint8_t { kF32, kF16, kBF16, kF64, kI32, kI64, kU8 };

struct CapturedView {
  const void* data = nullptr;
  CapturedType type = CapturedType::kF32;
  std::int32_t rank = 0;
  std::int64_t extent[expr::kMostSubscripts] = {};
  std::int64_t stride[expr::kMostSubscripts] = {};  ///< in elements
};

/// Returns a view of a tensor whose subscripts are its first `rank` dimensions.
[[nodiscard]] CapturedView captured_view(const Tensor& tensor, std::size_t rank);

/// Reads elements of storage type T and converts them to the types that a function uses.
template <class T>
struct Stored {
  const T* data;

  [[nodiscard]] float as_float(std::int64_t at) const {
    if constexpr (std::is_arithmetic_v<T>) {
      return static_cast<float>(data[at]);
    } else {
      return core::to_float(data[at]);
    }
  }
  /// Returns the element as an integer. 64-bit integers wrap. Floats round towards zero and saturate.
  [[nodiscard]] std::int32_t as_int(std::int64_t at) const {
    if constexpr (std::is_integral_v<T>) {
      return static_cast<std::int32_t>(static_cast<std::uint32_t>(data[at]));
    } else {
      return score_math::to_int(as_float(at));
    }
  }
  [[nodiscard]] bool as_bool(std::int64_t at) const {
    if constexpr (std::is_arithmetic_v<T>) {
      return data[at] != 0;
    } else {
      return as_float(at) != 0;
    }
  }
};

/// Calls visit(Stored<T>()), where T is the element type of the view.
template <class Visit>
void with_elements(const CapturedView& view, const Visit& visit) {
  const auto of = [&]<class T>(const T* data) { visit(Stored<T>{data}); };
  switch (view.type) {
    case CapturedType::kF32:
      return of(static_cast<const float*>(view.data));
    case CapturedType::kF16:
      return of(static_cast<const core::Half*>(view.data));
    case CapturedType::kBF16:
      return of(static_cast<const core::BFloat16*>(view.data));
    case CapturedType::kF64:
      return of(static_cast<const double*>(view.data));
    case CapturedType::kI32:
      return of(static_cast<const std::int32_t*>(view.data));
    case CapturedType::kI64:
      return of(static_cast<const std::int64_t*>(view.data));
    case CapturedType::kU8:
      return of(static_cast<const unsigned char*>(view.data));
  }
}

/// Returns the memory offset, in elements, of a subscript. The subscript is clamped to the extent of its dimension.
[[nodiscard]] inline std::int64_t offset(const CapturedView& view, std::int32_t dimension, std::int64_t subscript) {
  return std::clamp<std::int64_t>(subscript, 0, view.extent[dimension] - 1) * view.stride[dimension];
}

}  // namespace attend::cpu
