// Arrays that the kernel before an emulated one writes while that one runs.
#pragma once

#include <cstddef>

namespace emulated {

/// Blocks find `early` there until one of their threads waits for the kernel before.
struct LateArray {
  void* at;
  const void* early;
  const void* late;
  std::size_t bytes;
};

struct LateArrays {
  const LateArray* first = nullptr;
  std::size_t count = 0;
};

}  // namespace emulated
