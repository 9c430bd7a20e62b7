// Dense tensors that the ring owns: messages and partial results.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "attend/tensor.hpp"

namespace attend::ring {

/// Returns a view of rows [begin, begin + count) (dimension 2) of a tensor.
[[nodiscard]] Tensor rows_of(const Tensor& t, std::int64_t begin, std::int64_t count);

/// Computes to += from, of equal shapes, each f32 or f64.
void accumulate(const Tensor& to, const Tensor& from);

/// Computes to = from, of equal shapes and any float types, each element rounded once. Equal types are copied bytewise.
void convert(const Tensor& to, const Tensor& from);

/// Two dense tensors one after another, keys and values or their gradients, sent as one message.
struct Pair {
  Tensor first, second;
  std::size_t bytes;  ///< from the start of the first to the end of the second

  /// @param second_shape  zeros: there is no second tensor
  [[nodiscard]] static Pair of(DType first_dtype, const Shape& first_shape, DType second_dtype,
                               const Shape& second_shape);

  /// Returns the same pair at an address of a device, a multiple of 64, where the first tensor begins.
  [[nodiscard]] Pair at(std::byte* memory, Device device = {}) const;
};

/// Memory for one or two dense tensors, uninitialised.
class Block {
 public:
  Block() = default;
  Block(DType dtype, const Shape& shape) : Block(Pair::of(dtype, shape, dtype, {0, 0, 0, 0})) {}
  explicit Block(const Pair& pair);

  [[nodiscard]] const Tensor& first() const { return pair_.first; }
  [[nodiscard]] const Tensor& second() const { return pair_.second; }
  [[nodiscard]] std::span<std::byte> bytes() const { return {memory_.get(), pair_.bytes}; }
  void zero() const;

 private:
  std::unique_ptr<std::byte[]> memory_;
  Pair pair_ = {};
};

}  // namespace attend::ring
