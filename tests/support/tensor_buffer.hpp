// Tensors that own their memory, placed in every way a caller may place them.
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
  kPadded,  // BHSD, with unused elements after each row, head and batch entry
  kSliced   // BHSD, the first columns of rows that are whole pieces of 16 bytes
};

/// Gives `bytes` bytes, more than 0, aligned to 256.
using Allocate = std::shared_ptr<std::byte> (*)(std::size_t bytes);

/// Where TensorBuffers made from now on get their memory; null: the heap. For memory that a GPU sees too.
void set_tensor_memory(Allocate allocate);

/// Memory from there.
[[nodiscard]] std::shared_ptr<std::byte> allocate_tensor_memory(std::size_t bytes);

struct Placement {
  Layout layout = Layout::kBHSD;
  std::int64_t base_offset = 0;  // elements between a 64-byte boundary and the first element
};

/// A tensor view and (shared) ownership of its memory.
///
/// Every byte of the memory starts as 0xFF, which is NaN in every float type. So an output that is not written stays
/// NaN, padding that is read turns the result into NaN, and padding that is written no longer reads 0xFF. Under
/// AddressSanitizer the guard zones before and after the tensor may not be touched at all.
class TensorBuffer {
 public:
  TensorBuffer() = default;
  TensorBuffer(DType dtype, const Shape& shape, Placement placement = {});

  /// Views of one (batch, seqlen, sum of heads, head_dim) buffer: a fused QKV projection. All tensors need the same
  /// batch, seqlen and head_dim.
  static std::vector<TensorBuffer> fused(DType dtype, const std::vector<Shape>& shapes, std::int64_t base_offset);

  /// The same memory seen with another shape; dimensions of size 1 that grow get stride 0.
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

  /// All elements in row-major order, widened.
  [[nodiscard]] std::vector<double> values() const;

  /// All elements in row-major order, as bytes: for comparing bit by bit.
  [[nodiscard]] std::vector<std::byte> bytes() const;

  /// Every byte of the memory, in and outside of the tensor: for checking that nothing was written.
  [[nodiscard]] std::vector<std::byte> memory() const;

  /// True if every byte that belongs to no view of this memory still reads 0xFF.
  [[nodiscard]] bool gaps_intact() const;

 private:
  struct Storage;
  std::shared_ptr<Storage> storage_;
  Tensor view_ = {};
};

}  // namespace attend::test
