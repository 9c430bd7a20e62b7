// Arrays that the previous kernel in a stream still writes while the emulated kernel runs.
#pragma once

#include <cstddef>

namespace emulated {

/// The memory at `at` holds `early` until a thread of the block waits for the previous kernel. From then on it holds
/// `late`.
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
