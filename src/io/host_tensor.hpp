// A tensor that owns host memory: the readers return it, and the program computes into it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "attend/attention.hpp"

namespace attend::io {

/// Returns the bytes of a dense tensor, or nothing if a size is negative or the product does not fit into 62 bits.
[[nodiscard]] std::optional<std::int64_t> tensor_bytes(DType dtype, const Shape& shape) noexcept;

/// Throws Error (kInvalidArgument) starting with `what` if `bytes` exceed the machine's physical memory. Allocating
/// them would succeed, but using them would kill the process.
void require_memory(std::string_view what, std::int64_t bytes);

/// A dense row-major (batch, heads, seqlen, head_dim) tensor, 64-byte aligned. Movable, not copyable.
class HostTensor {
 public:
  /// A tensor without elements.
  HostTensor() = default;

  /// Allocates uninitialised elements. @throws Error (kInvalidArgument) if the memory is not available.
  HostTensor(DType dtype, const Shape& shape);

  [[nodiscard]] const Tensor& view() const noexcept { return view_; }
  [[nodiscard]] const Shape& shape() const noexcept { return view_.shape; }
  [[nodiscard]] DType dtype() const noexcept { return view_.dtype; }
  [[nodiscard]] std::int64_t numel() const noexcept { return view_.numel(); }
  [[nodiscard]] std::span<std::byte> bytes() noexcept { return {memory_.get(), size_}; }
  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return {memory_.get(), size_}; }

  /// Sets every float to NaN, so that any comparison detects an unwritten element.
  void poison() noexcept;

  /// Sets every element to `value`, rounded to the dtype.
  void fill(double value);

  /// Returns a copy in another dtype, each element rounded once (through float32 if the target is a 16-bit type).
  [[nodiscard]] HostTensor converted(DType dtype) const;

 private:
  struct Free {
    void operator()(std::byte* memory) const noexcept;
  };
  std::unique_ptr<std::byte[], Free> memory_;
  std::size_t size_ = 0;
  Tensor view_;
};

}  // namespace attend::io
