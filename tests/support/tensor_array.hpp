// Arrays in the same memory as the elements of TensorBuffer. A GPU that can access TensorBuffers can access these
// arrays too.
#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "support/tensor_buffer.hpp"

namespace attend::test {

/// Container allocator that uses the memory provided by set_tensor_memory(). The shared pointer that owns the memory is
/// stored in front of the elements.
template <class T>
struct TensorMemory {
  using value_type = T;

  TensorMemory() = default;
  template <class U>
  TensorMemory(const TensorMemory<U>& /*other*/) {}

  [[nodiscard]] T* allocate(std::size_t count) {
    std::shared_ptr<std::byte> memory = allocate_tensor_memory(kHeaderBytes + count * sizeof(T));
    std::byte* const first = memory.get();
    new (first) Owner(std::move(memory));
    return reinterpret_cast<T*>(first + kHeaderBytes);
  }
  void deallocate(T* elements, std::size_t /*count*/) {
    auto* const header = reinterpret_cast<Owner*>(reinterpret_cast<std::byte*>(elements) - kHeaderBytes);
    // Moved out first, because the header lies in the memory that this owner frees.
    const Owner owner = std::move(*header);
    header->~Owner();
  }

  template <class U>
  bool operator==(const TensorMemory<U>& /*other*/) const {
    return true;
  }

 private:
  using Owner = std::shared_ptr<std::byte>;
  static constexpr std::size_t kHeaderBytes = 64;
  static_assert(sizeof(Owner) <= kHeaderBytes && alignof(T) <= kHeaderBytes);
};

template <class T>
using TensorArray = std::vector<T, TensorMemory<T>>;

}  // namespace attend::test
