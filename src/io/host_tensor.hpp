// A tensor that owns host memory. Functions that read files return such a tensor, and the program writes results to
// such tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "attend/attention.hpp"

namespace attend::io {

/// Returns the size in bytes of a dense tensor. Returns nothing if an extent is negative or the result does not fit
/// into 62 bits.
[[nodiscard]] std::optional<std::int64_t> tensor_bytes(DType dtype, const Shape& shape) noexcept;

/// Throws Error (kInvalidArgument), whose text starts with `what`, if `bytes` exceeds the machine's physical memory.
/// The allocation itself would succeed, but the system would kill the process when it uses the memory.
void require_memory(std::string_view what, std::int64_t bytes);

/// A dense row-major (batch, heads, seqlen, head_dim) tensor, 64-byte aligned. It can be moved but not copied.
class HostTensor {
 public:
  /// Makes a tensor without elements.
  HostTensor() = default;

  /// Allocates uninitialised elements. @throws Error (kInvalidArgument) if the memory is not available.
  HostTensor(DType dtype, const Shape& shape);

  [[nodiscard]] const Tensor& view() const noexcept { return view_; }
  [[nodiscard]] const Shape& shape() const noexcept { return view_.shape; }
  [[nodiscard]] DType dtype() const noexcept { return view_.dtype; }
  [[nodiscard]] std::int64_t numel() const noexcept { return view_.numel(); }
  [[nodiscard]] std::span<std::byte> bytes() noexcept { return {memory_.get(), size_}; }
  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return {memory_.get(), size_}; }

  /// Sets every float to NaN, so that a comparison detects elements that are never written.
  void poison() noexcept;

  /// Sets every element to `value`, rounded to the dtype.
  void fill(double value);

  /// Returns a copy in another dtype. Each element is rounded once. If the target is a 16-bit type, it is first
  /// converted to float32.
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
