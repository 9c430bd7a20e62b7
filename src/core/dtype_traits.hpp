// Properties of each element type beyond its name and size, in one place that all other code asks.
// docs/code_map.md says how to add a type.
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
  const char* npy = nullptr;  ///< as NumPy's files call it; null: no element type
  bool is_float = false;      ///< q, k, v and o may have it
  bool is_quantized = false;  ///< caches of keys and values may have it, with factors: CacheIndex::k_descale
  bool is_integer = false;    ///< score functions may read it
  double unit_roundoff = 0;   ///< half the distance between neighbouring numbers, relative to their size
  double smallest_normal = 0;
  std::optional<ElementType> element = {};  ///< of kernels; none: no kernel takes it
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
      return of_kernels("<V2", ElementType::kBF16);  // NumPy has no such type: two opaque bytes
    case DType::kF64:
      return {.npy = "<f8", .is_float = true, .unit_roundoff = 0x1p-53, .smallest_normal = 0x1p-1022};
    case DType::kBool:
      return {.npy = "|b1"};
    case DType::kF8E4M3:  // NumPy has no such type: an opaque byte
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

/// May q, k, v and o have it?
[[nodiscard]] constexpr bool is_float(DType dtype) {
  return dtype_traits(dtype).is_float;
}

/// Do its elements stand for numbers that are divided by a factor? Only caches of keys and values may have it.
[[nodiscard]] constexpr bool is_quantized(DType dtype) {
  return dtype_traits(dtype).is_quantized;
}

/// A type with fewer digits than float32, which everything is computed in: results of it are rounded once more.
[[nodiscard]] constexpr bool is_narrow(DType dtype) {
  return is_float(dtype) && dtype_bytes(dtype) < dtype_bytes(DType::kF32);
}

/// Do the SIMD loops of src/cpu read and write it? A new type has to say so: they take others for float32.
[[nodiscard]] constexpr bool has_simd_loops(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
      return true;
    case DType::kF64:
    case DType::kBool:
    case DType::kF8E4M3:  // quantized-inl.hpp of src/cpu/serving reads and writes these two
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

/// Every element type, in the order of the enumeration.
inline constexpr auto kDTypes = [] {
  std::array<DType, detail::count_dtypes()> all = {};
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<DType>(i);
  return all;
}();

/// The type that dtype_name() calls `name`, or nothing.
[[nodiscard]] constexpr std::optional<DType> find_dtype(std::string_view name) {
  for (const DType dtype : kDTypes) {
    if (name == dtype_name(dtype)) return dtype;
  }
  return std::nullopt;
}

// The two descriptions of a type that kernels know have to be of one type, and complete.
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
