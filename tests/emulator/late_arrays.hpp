// Arrays that the kernel before an emulated one writes while the emulated one runs.
#pragma once

#include <cstddef>

namespace emulated {

/// Blocks find `early` at `at` until one of their threads waits for the previous kernel, and `late` afterwards.
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
