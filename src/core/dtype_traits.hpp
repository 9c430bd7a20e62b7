// Properties of each element type in addition to name and size. All other code queries them here. docs/code_map.md
// describes how to add a type.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "attend/tensor.hpp"
#include "kernels/common/element_info.cuh"

namespace attend::core {

struct DTypeTraits {
  const char* npy = nullptr;  ///< type code in .npy files; null: not an element type
  bool is_float = false;      ///< supported by q, k, v and o
  bool is_quantized = false;  ///< supported by caches of keys and values, with scale factors: CacheIndex::k_descale
  bool is_integer = false;    ///< supported by score functions
  double unit_roundoff = 0;   ///< half the distance between neighbouring numbers, relative to their magnitude
  double smallest_normal = 0;
  std::optional<ElementType> element = {};  ///< type in kernels; none: no kernel supports it
};

[[nodiscard]] constexpr DTypeTraits dtype_traits(DType dtype) {
  const auto of_kernels = [](const char* npy, ElementType element) {
    const ElementInfo info = element_info(element);
    return DTypeTraits{.npy = npy,
                       .is_float = true,
                       .unit_roundoff = info.unit_roundoff,
                       .smallest_normal = info.smallest_normal,
                       .element = element};
  };
  switch (dtype) {
    case DType::kF32:
      return of_kernels("<f4", ElementType::kF32);
    case DType::kF16:
      return of_kernels("<f2", ElementType::kF16);
    case DType::kBF16:
      return of_kernels("<V2", ElementType::kBF16);  // NumPy has no bfloat16: two opaque bytes
    case DType::kF64:
      return {.npy = "<f8", .is_float = true, .unit_roundoff = 0x1p-53, .smallest_normal = 0x1p-1022};
    case DType::kBool:
      return {.npy = "|b1"};
    case DType::kF8E4M3:  // NumPy has no such type: one opaque byte
      return {.npy = "|V1", .is_quantized = true, .unit_roundoff = 0x1p-4, .smallest_normal = 0x1p-6};
    case DType::kI8:
      return {.npy = "|i1", .is_quantized = true};
    case DType::kI32:
      return {.npy = "<i4", .is_integer = true};
    case DType::kI64:
      return {.npy = "<i8", .is_integer = true};
  }
  return {};
}

/// Returns whether q, k, v and o may have the type.
[[nodiscard]] constexpr bool is_float(DType dtype) {
  return dtype_traits(dtype).is_float;
}

/// Returns whether elements stand for numbers divided by a scale factor. Only caches of keys and values may have such a
/// type.
[[nodiscard]] constexpr bool is_quantized(DType dtype) {
  return dtype_traits(dtype).is_quantized;
}

/// Returns whether the type has fewer digits than float32, so that results are rounded from float32.
[[nodiscard]] constexpr bool is_narrow(DType dtype) {
  return is_float(dtype) && dtype_bytes(dtype) < dtype_bytes(DType::kF32);
}

/// Returns whether the SIMD loops of src/cpu support the type. The loops treat all other types as float32, so a new
/// type must be listed here.
[[nodiscard]] constexpr bool has_simd_loops(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
      return true;
    case DType::kF64:
    case DType::kBool:
    case DType::kF8E4M3:  // quantized-inl.hpp of src/cpu/serving supports these two
    case DType::kI8:
    case DType::kI32:
    case DType::kI64:
      return false;
  }
  return false;
}

namespace detail {
[[nodiscard]] constexpr std::size_t count_dtypes() {
  std::size_t count = 0;
  while (dtype_bytes(static_cast<DType>(count)) != 0) ++count;
  return count;
}
}  // namespace detail

/// All element types, in the order of the enumeration.
inline constexpr auto kDTypes = [] {
  std::array<DType, detail::count_dtypes()> all = {};
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<DType>(i);
  return all;
}();

/// Returns the type that dtype_name() calls `name`, or nothing.
[[nodiscard]] constexpr std::optional<DType> find_dtype(std::string_view name) {
  for (const DType dtype : kDTypes) {
    if (name == dtype_name(dtype)) return dtype;
  }
  return std::nullopt;
}

// Checks that the two descriptions of a kernel type agree and are complete.
static_assert([] {
  for (const DType dtype : kDTypes) {  // NOLINT(readability-use-anyofallof): one refusal a line
    if (dtype_traits(dtype).npy == nullptr) return false;
    const std::optional<ElementType> element = dtype_traits(dtype).element;
    if (!element) continue;
    const ElementInfo info = element_info(*element);
    if (info.bytes != dtype_bytes(dtype) || info.p_shift <= 0 || info.most_keys_of_sum <= 0) return false;
  }
  return true;
}());

}  // namespace attend::core
