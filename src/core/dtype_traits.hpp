// Properties of each element type other than name and size. All other code reads these properties from this table.
// docs/extending.md describes how to add a type.
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
  const char* npy = nullptr;  ///< type code in .npy files; null if the value is not an element type
  bool is_float = false;      ///< true if q, k, v and o may have the type in both passes
  /// True if caches of keys and values may have the type, with the scale factors CacheIndex::k_descale.
  bool is_quantized = false;
  bool is_integer = false;   ///< true if score functions may read captures of the type as integers
  double unit_roundoff = 0;  ///< largest relative error of rounding a number to the type
  double smallest_normal = 0;
  std::optional<ElementType> element = {};  ///< the corresponding type in kernels; unset if no kernel supports it
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
      return of_kernels("<V2", ElementType::kBF16);  // NumPy has no bfloat16, so the code stands for two opaque bytes
    case DType::kF64:
      return {.npy = "<f8", .is_float = true, .unit_roundoff = 0x1p-53, .smallest_normal = 0x1p-1022};
    case DType::kBool:
      return {.npy = "|b1"};
    case DType::kF8E4M3:  // NumPy has no 8-bit float, so the code stands for one opaque byte
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

/// Returns whether q, k, v and o may have the type in both passes.
[[nodiscard]] constexpr bool is_float(DType dtype) {
  return dtype_traits(dtype).is_float;
}

/// Returns whether elements represent numbers divided by a scale factor. Caches of keys and values may have such a
/// type. Inputs of a forward pass may be kF8E4M3.
[[nodiscard]] constexpr bool is_quantized(DType dtype) {
  return dtype_traits(dtype).is_quantized;
}

/// Returns whether the type is a float type narrower than float32. Results of that type are computed in float32 and
/// rounded.
[[nodiscard]] constexpr bool is_narrow(DType dtype) {
  return is_float(dtype) && dtype_bytes(dtype) < dtype_bytes(DType::kF32);
}

/// Returns whether the SIMD loops of src/cpu support the type. Those loops treat a type for which they have no special
/// code as float32. A new type must therefore be added to this list.
[[nodiscard]] constexpr bool has_simd_loops(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
      return true;
    case DType::kF64:
    case DType::kBool:
    case DType::kF8E4M3:  // quantized-inl.hpp of src/cpu/serving supports this type and the next
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

// Checks that DTypeTraits and ElementType describe the same kernel types, and that every type has a type code.
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
