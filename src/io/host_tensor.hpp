// A tensor that owns its memory on the host: what the readers give and what the program computes into.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "attend/attention.hpp"

namespace attend::io {

/// Bytes of a dense tensor; nothing where a size is negative or the product does not fit into 62 bits.
[[nodiscard]] std::optional<std::int64_t> tensor_bytes(DType dtype, const Shape& shape) noexcept;

/// Throws Error (kInvalidArgument) starting with `what` where `bytes` exceed the machine's physical memory: asking the
/// system for them would succeed, and using them would end the process.
void require_memory(std::string_view what, std::int64_t bytes);

/// A dense row-major (batch, heads, seqlen, head_dim) tensor, 64-byte aligned. Movable, not copyable.
class HostTensor {
 public:
  /// A tensor of no elements.
  HostTensor() = default;

  /// Uninitialised elements. @throws Error (kInvalidArgument) where the memory is not to be had.
  HostTensor(DType dtype, const Shape& shape);

  [[nodiscard]] const Tensor& view() const noexcept { return view_; }
  [[nodiscard]] const Shape& shape() const noexcept { return view_.shape; }
  [[nodiscard]] DType dtype() const noexcept { return view_.dtype; }
  [[nodiscard]] std::int64_t numel() const noexcept { return view_.numel(); }
  [[nodiscard]] std::span<std::byte> bytes() noexcept { return {memory_.get(), size_}; }
  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return {memory_.get(), size_}; }

  /// Every float becomes NaN, so that an element nobody writes is found by any comparison.
  void poison() noexcept;

  /// Every element becomes `value`, rounded to the dtype.
  void fill(double value);

  /// A copy in another dtype, each element rounded once (through float32 where the target is a 16-bit type).
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
