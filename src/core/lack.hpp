// A Lack is the reason why a backend cannot run a problem. It is stored as data, and the text is made only when it is
// shown, because "auto" queries every backend in every call.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <variant>

#include "attend/tensor.hpp"

namespace attend::core {

struct Problem;

/// Returns the bit of an element type in DTypes.
[[nodiscard]] constexpr unsigned dtype_bit(DType dtype) {
  return 1U << static_cast<unsigned>(dtype);
}

/// A set of element types.
struct DTypes {
  unsigned bits = 0;
  [[nodiscard]] constexpr bool has(DType dtype) const { return (bits & dtype_bit(dtype)) != 0; }
};

/// Integers from `first` to `last`.
struct Range {
  std::int64_t first, last;
};

/// A value that the message shows: a number, a set or a text. It may also be a function that makes the text from the
/// problem. For a Tensor, the message shows the address and the strides.
using LackText = std::variant<const char*, std::int64_t, double, DTypes, Range, std::span<const int>, const Tensor*,
                              std::string (*)(const Problem&)>;

struct Lack {
  /// Name of the tensor that has the property `argument`. Null if `argument` is a property of the call.
  const char* tensor = nullptr;
  const char* argument;
  LackText value;
  LackText allowed;
};

/// Returns one line. Examples: "dropout_p: 0.1, compute 'fa2' allows 0" and "q: head_dim 72, compute 'wgmma' allows 64,
/// 128".
[[nodiscard]] std::string lack_text(const Lack& lack, const char* compute, const Problem& problem);

}  // namespace attend::core
