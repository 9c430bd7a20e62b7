#include "support/standard_sums.hpp"

#include <algorithm>

namespace attend::test {

// The GPU tests spend most of their time in the two loops of this file. The compiler builds the loops for several
// vector widths, and each run uses the widest one that the processor supports. Contraction to fused multiply-add is off
// (tests/CMakeLists.txt), so every version gives the same bits.
#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__)
#define ATTEND_WIDE_LOOPS __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define ATTEND_WIDE_LOOPS
#endif

ATTEND_WIDE_LOOPS void dots(const float* a, const float* b, std::int64_t cols, float* value, float* magnitude) {
  float sum[kSide] = {}, size[kSide] = {};
  for (std::int64_t c = 0; c < cols; ++c) {
    for (std::int64_t s = 0; s < kSide; ++s) {
      const float product = a[c] * b[c * kSide + s];
      sum[s] += product;
      size[s] += std::abs(product);
    }
  }
  std::copy_n(sum, kSide, value);
  std::copy_n(size, kSide, magnitude);
}

ATTEND_WIDE_LOOPS void add_scaled(float* __restrict to, float* __restrict walk, float* __restrict bound,
                                  const float* __restrict x, std::int64_t n, float factor, float step, float error) {
  for (std::int64_t c = 0; c < n; ++c) {
    to[c] += factor * x[c];
    walk[c] += step * step * x[c] * x[c];
    bound[c] += error * std::abs(x[c]);
  }
}

}  // namespace attend::test
