#include "support/tensor_buffer.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <stdexcept>

#include "core/elements.hpp"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, size) static_cast<void>(0)
#define ASAN_UNPOISON_MEMORY_REGION(address, size) static_cast<void>(0)
#endif

namespace attend::test {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kGuardBytes = 1024;     // per side; wider than any vector register or tile row
constexpr std::int64_t kPaddingElements = 3;  // odd, so that padded rows are not aligned
// 8 elements of 16 bits are 16 bytes, the alignment of wide loads and of the copy engine.
constexpr std::int64_t kPieceElements = 8;
constexpr std::byte kPoison{0xFF};

std::size_t extent_elements(const Tensor& t) {
  if (t.numel() == 0) return 0;
  std::int64_t last = 0;
  for (std::size_t d = 0; d < 4; ++d) last += (t.shape[d] - 1) * t.stride[d];
  return static_cast<std::size_t>(last + 1);
}

Shape strides_of(Layout layout, const Shape& shape) {
  switch (layout) {
    case Layout::kBHSD:
      return contiguous_strides(shape);
    case Layout::kBSHD:
      return Tensor::bshd<void>(nullptr, DType::kF32, shape).stride;
    case Layout::kPadded: {
      const std::int64_t row = shape[3] + kPaddingElements;
      const std::int64_t head = shape[2] * row + kPaddingElements;
      return {shape[1] * head + kPaddingElements, head, row, 1};
    }
    case Layout::kSliced: {
      const std::int64_t row = (shape[3] / kPieceElements + 1) * kPieceElements;
      return {shape[1] * shape[2] * row, shape[2] * row, row, 1};
    }
  }
  return {};
}

template <class Visit>
void for_each_element(const Tensor& t, Visit visit) {
  for (std::int64_t b = 0; b < t.shape[0]; ++b) {
    for (std::int64_t h = 0; h < t.shape[1]; ++h) {
      for (std::int64_t row = 0; row < t.shape[2]; ++row) {
        for (std::int64_t col = 0; col < t.shape[3]; ++col) visit(b, h, row, col);
      }
    }
  }
}

std::byte* address(const Tensor& t, std::int64_t b, std::int64_t h, std::int64_t row, std::int64_t col) {
  return static_cast<std::byte*>(core::element(t, b, h, row)) + col * dtype_bytes(t.dtype);
}

std::shared_ptr<std::byte> allocate_on_heap(std::size_t bytes) {
  return {new std::byte[bytes], std::default_delete<std::byte[]>()};
}

Allocate tensor_memory = allocate_on_heap;

}  // namespace

void set_tensor_memory(Allocate allocate) {
  tensor_memory = allocate == nullptr ? allocate_on_heap : allocate;
}

std::shared_ptr<std::byte> allocate_tensor_memory(std::size_t bytes) {
  return tensor_memory(bytes);
}

/// Memory of a buffer, in this order: guard zone, base offset, elements, guard zone.
struct TensorBuffer::Storage {
  Storage(DType dtype, std::int64_t base_offset, std::size_t elements)
      : size(kGuardBytes + elements_to_bytes(dtype, elements + static_cast<std::size_t>(base_offset)) + kGuardBytes +
             kAlignment),
        memory(tensor_memory(size)) {
    std::fill_n(memory.get(), size, kPoison);
    void* start = memory.get() + kGuardBytes;
    std::size_t space = size - kGuardBytes;
    std::align(kAlignment, 1, start, space);
    first = static_cast<std::byte*>(start) + elements_to_bytes(dtype, static_cast<std::size_t>(base_offset));
    last = first + elements_to_bytes(dtype, elements);
    lock_guards();
  }
  ~Storage() { unlock_guards(); }
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  static std::size_t elements_to_bytes(DType dtype, std::size_t elements) {
    return elements * static_cast<std::size_t>(dtype_bytes(dtype));
  }
  void lock_guards() {
    ASAN_POISON_MEMORY_REGION(memory.get(), static_cast<std::size_t>(first - memory.get()));
    ASAN_POISON_MEMORY_REGION(last, static_cast<std::size_t>(memory.get() + size - last));
  }
  void unlock_guards() { ASAN_UNPOISON_MEMORY_REGION(memory.get(), size); }

  std::size_t size;
  std::shared_ptr<std::byte> memory;
  std::byte* first = nullptr;
  std::byte* last = nullptr;
  std::vector<Tensor> views;  // all views of this memory; only their elements may be written
};

TensorBuffer::TensorBuffer(DType dtype, const Shape& shape, Placement placement) {
  view_ = {nullptr, dtype, {}, shape, strides_of(placement.layout, shape)};
  storage_ = std::make_shared<Storage>(dtype, placement.base_offset, extent_elements(view_));
  view_.data = storage_->first;
  storage_->views.push_back(view_);
}

std::vector<TensorBuffer> TensorBuffer::fused(DType dtype, const std::vector<Shape>& shapes, std::int64_t base_offset) {
  const Shape& first = shapes.front();
  std::int64_t heads = 0;
  for (const Shape& shape : shapes) {
    if (shape[0] != first[0] || shape[2] != first[2] || shape[3] != first[3]) {
      throw std::invalid_argument("fused: batch, seqlen and head_dim must agree");
    }
    heads += shape[1];
  }
  const Shape stride = {first[2] * heads * first[3], first[3], heads * first[3], 1};
  const auto elements = static_cast<std::size_t>(first[0] * stride[0]);
  auto storage = std::make_shared<Storage>(dtype, base_offset, elements);
  std::vector<TensorBuffer> buffers;
  std::int64_t at = 0;
  for (const Shape& shape : shapes) {
    TensorBuffer buffer;
    buffer.storage_ = storage;
    buffer.view_ = {storage->first + at * dtype_bytes(dtype), dtype, {}, shape, stride};
    storage->views.push_back(buffer.view_);
    buffers.push_back(std::move(buffer));
    at += shape[1] * shape[3];
  }
  return buffers;
}

TensorBuffer TensorBuffer::expanded(const Shape& shape) const {
  TensorBuffer wide = *this;
  for (std::size_t d = 0; d < 4; ++d) {
    if (shape[d] == view_.shape[d]) continue;
    if (view_.shape[d] != 1) throw std::invalid_argument("expanded: only dimensions of size 1 can grow");
    wide.view_.stride[d] = 0;
  }
  wide.view_.shape = shape;
  return wide;
}

double TensorBuffer::at(std::int64_t b, std::int64_t h, std::int64_t row, std::int64_t col) const {
  return core::load(view_, b, h, row, col);
}

void TensorBuffer::set(std::int64_t b, std::int64_t h, std::int64_t row, std::int64_t col, double value) const {
  core::store(view_, b, h, row, col, value);
}

void TensorBuffer::generate(const Make& make) const {
  for_each_element(view_, [&](auto b, auto h, auto row, auto col) { set(b, h, row, col, make(b, h, row, col)); });
}

void TensorBuffer::fill(double value) const {
  generate([value](auto...) { return value; });
}

std::vector<double> TensorBuffer::values() const {
  std::vector<double> all;
  all.reserve(static_cast<std::size_t>(view_.numel()));
  for_each_element(view_, [&](auto b, auto h, auto row, auto col) { all.push_back(at(b, h, row, col)); });
  return all;
}

std::vector<std::byte> TensorBuffer::bytes() const {
  const auto size = static_cast<std::size_t>(dtype_bytes(view_.dtype));
  std::vector<std::byte> all(static_cast<std::size_t>(view_.numel()) * size);
  std::byte* to = all.data();
  for_each_element(view_, [&](auto b, auto h, auto row, auto col) {
    std::memcpy(to, address(view_, b, h, row, col), size);
    to += size;
  });
  return all;
}

std::vector<std::byte> TensorBuffer::memory() const {
  storage_->unlock_guards();
  std::vector<std::byte> copy(storage_->memory.get(), storage_->memory.get() + storage_->size);
  storage_->lock_guards();
  return copy;
}

bool TensorBuffer::gaps_intact() const {
  std::vector<std::byte> rest = memory();
  for (const Tensor& view : storage_->views) {
    for_each_element(view, [&](auto b, auto h, auto row, auto col) {
      const auto offset = address(view, b, h, row, col) - storage_->memory.get();
      std::fill_n(rest.begin() + offset, dtype_bytes(view.dtype), kPoison);
    });
  }
  return std::all_of(rest.begin(), rest.end(), [](std::byte byte) { return byte == kPoison; });
}

}  // namespace attend::test
