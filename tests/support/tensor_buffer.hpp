// Tensors that own their memory, with every layout and alignment that a caller may use.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "attend/tensor.hpp"

namespace attend::test {

enum class Layout : std::uint8_t {
  kBHSD,    // dense (batch, heads, seqlen, head_dim)
  kBSHD,    // dense (batch, seqlen, heads, head_dim)
  kPadded,  // BHSD with unused elements after each row, each head and each batch entry
  kSliced   // BHSD; each row is the start of a longer row whose length is a multiple of 16 bytes
};

/// Returns `bytes` bytes (more than 0), aligned to 256 bytes.
using Allocate = std::shared_ptr<std::byte> (*)(std::size_t bytes);

/// Sets the function that allocates the memory of later TensorBuffers, for example memory that a GPU can access. Null
/// selects the heap.
void set_tensor_memory(Allocate allocate);

/// Allocates memory with the function of set_tensor_memory().
[[nodiscard]] std::shared_ptr<std::byte> allocate_tensor_memory(std::size_t bytes);

struct Placement {
  Layout layout = Layout::kBHSD;
  std::int64_t base_offset = 0;  // elements between a 64-byte boundary and the first element
};

/// A tensor view that shares ownership of its memory.
///
/// Every byte of the memory starts as 0xFF, which is NaN in every float type. Therefore an output that is not written
/// stays NaN, padding that is read turns the result into NaN, and padding that is written no longer contains 0xFF.
/// Under AddressSanitizer, any access to the guard zones before and after the tensor is an error.
class TensorBuffer {
 public:
  TensorBuffer() = default;
  TensorBuffer(DType dtype, const Shape& shape, Placement placement = {});

  /// Returns views of one (batch, seqlen, sum of heads, head_dim) buffer, like a fused QKV projection. All tensors must
  /// have the same batch, seqlen and head_dim.
  static std::vector<TensorBuffer> fused(DType dtype, const std::vector<Shape>& shapes, std::int64_t base_offset);

  /// Returns a view of the same memory with another shape. Dimensions of size 1 may grow; they get stride 0.
  [[nodiscard]] TensorBuffer expanded(const Shape& shape) const;

  [[nodiscard]] const Tensor& view() const { return view_; }
  [[nodiscard]] const Shape& shape() const { return view_.shape; }
  [[nodiscard]] DType dtype() const { return view_.dtype; }

  [[nodiscard]] double at(std::int64_t b, std::int64_t h, std::int64_t row, std::int64_t col) const;
  void set(std::int64_t b, std::int64_t h, std::int64_t row, std::int64_t col, double value) const;

  /// Sets every element to make(b, h, row, col), in row-major order.
  using Make = std::function<double(std::int64_t, std::int64_t, std::int64_t, std::int64_t)>;
  void generate(const Make& make) const;
  void fill(double value) const;

  /// Returns all elements in row-major order, converted to double.
  [[nodiscard]] std::vector<double> values() const;

  /// Returns all elements in row-major order as bytes, for bitwise comparison.
  [[nodiscard]] std::vector<std::byte> bytes() const;

  /// Returns every byte of the memory, inside and outside the tensor, to check that nothing was written.
  [[nodiscard]] std::vector<std::byte> memory() const;

  /// Returns true if every byte outside all views of this memory is still 0xFF.
  [[nodiscard]] bool gaps_intact() const;

 private:
  struct Storage;
  std::shared_ptr<Storage> storage_;
  Tensor view_ = {};
};

}  // namespace attend::test
