// Dense tensors whose memory the ring owns. They hold messages and partial results.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "attend/tensor.hpp"

namespace attend::ring {

/// Returns a view of `count` rows of a tensor, starting with row `begin`. Rows are dimension 2.
[[nodiscard]] Tensor rows_of(const Tensor& t, std::int64_t begin, std::int64_t count);

/// Computes to += from. The tensors have equal shapes, and each is f32 or f64.
void accumulate(const Tensor& to, const Tensor& from);

/// Computes to = from. The tensors have equal shapes and any float types. Each element is rounded once; equal types are
/// copied bytewise.
void convert(const Tensor& to, const Tensor& from);

/// Two dense tensors in one piece of memory, sent as one message. They are keys and values, or the gradients of both.
struct Pair {
  Tensor first, second;
  std::size_t bytes;  ///< number of bytes from the start of the first tensor to the end of the second

  /// @param second_shape  all zeros if there is no second tensor
  [[nodiscard]] static Pair of(DType first_dtype, const Shape& first_shape, DType second_dtype,
                               const Shape& second_shape);

  /// Returns the same pair, stored at `memory`. The address must be a multiple of 64, and the first tensor begins at
  /// that address.
  [[nodiscard]] Pair at(std::byte* memory, Device device = {}) const;
};

/// Uninitialised memory for one or two dense tensors.
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
