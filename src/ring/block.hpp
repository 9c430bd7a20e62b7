// Dense tensors that the ring owns: what travels, and parts of results.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "attend/tensor.hpp"

namespace attend::ring {

/// Rows [begin, begin + count) (dimension 2) of a tensor: a view.
[[nodiscard]] Tensor rows_of(const Tensor& t, std::int64_t begin, std::int64_t count);

/// to += from, of one shape, each f32 or f64.
void accumulate(const Tensor& to, const Tensor& from);

/// to = from, of one shape and any float types, each element rounded once; of one type, the same bytes.
void convert(const Tensor& to, const Tensor& from);

/// Memory for one or two dense tensors; its contents start undefined.
class Block {
 public:
  Block() = default;
  Block(DType dtype, const Shape& shape) : Block(dtype, shape, dtype, {0, 0, 0, 0}) {}

  /// Keys and values, or their gradients, side by side, so that they are one message.
  Block(DType first_dtype, const Shape& first_shape, DType second_dtype, const Shape& second_shape);

  [[nodiscard]] const Tensor& first() const { return first_; }
  [[nodiscard]] const Tensor& second() const { return second_; }
  [[nodiscard]] std::span<std::byte> bytes() const { return {memory_.get(), num_bytes_}; }
  void zero() const;

 private:
  std::size_t num_bytes_ = 0;
  std::unique_ptr<std::byte[]> memory_;
  Tensor first_, second_;
};

}  // namespace attend::ring
