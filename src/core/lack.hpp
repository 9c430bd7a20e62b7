// What a backend lacks for a problem, as facts. The sentence is made only where somebody reads it: "auto" asks every
// backend at every call.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <variant>

#include "attend/tensor.hpp"

namespace attend::core {

struct Problem;

/// The bit of an element type in DTypes.
[[nodiscard]] constexpr unsigned dtype_bit(DType dtype) {
  return 1U << static_cast<unsigned>(dtype);
}

/// A set of element types.
struct DTypes {
  unsigned bits = 0;
  [[nodiscard]] constexpr bool has(DType dtype) const { return (bits & dtype_bit(dtype)) != 0; }
};

/// Numbers from `first` to `last`.
struct Range {
  std::int64_t first, last;
};

/// A value as it is, or what makes its text of the problem. A Tensor: its address and strides.
using LackText = std::variant<const char*, std::int64_t, double, DTypes, Range, std::span<const int>, const Tensor*,
                              std::string (*)(const Problem&)>;

struct Lack {
  const char* tensor = nullptr;  ///< whose property `argument` is; null: `argument` is one of the call
  const char* argument;
  LackText value;
  LackText allowed;
};

/// "dropout_p: 0.1, compute 'fa2' allows 0"; "q: head_dim 72, compute 'wgmma' allows 64, 128". One line.
[[nodiscard]] std::string lack_text(const Lack& lack, const char* compute, const Problem& problem);

}  // namespace attend::core
