// Score products of bfloat16 rows by AVX-512's dot-product instruction, vdpbf16ps: two multiply-adds a lane, float32
// sums.
//
// Where it pays: on AMD (Zen 4 and later) it doubles the rate of a float32 multiply-add. On Intel it does not: measured
// on a Xeon with avx512_bf16 (model 207), 2 x 16 lanes every second cycle, half of what two float32 units do. So it is
// on for AMD processors that have it, off elsewhere; the environment variable ATTEND_CPU_BF16_DOT = 0 or 1 decides
// instead, where the SIMD target is AVX-512 (ATTEND_SIMD may have made it another).
#pragma once

#include <cstdint>

#include "cpu/gemm.hpp"

namespace attend::cpu {

/// Whether score products of bf16 tensors go through bf16_dot_gemm in this process. Fixed at the first call.
bool bf16_dot_enabled();

/// C (m x n) = factor * A B for bf16 A and B, two steps of k at a time.
struct Bf16DotArgs {
  const std::uint16_t* a;  ///< (m, 2 * pairs) bf16, rows a_stride elements apart
  std::int64_t a_stride;
  const std::uint32_t* b;  ///< (pairs, n): B(2t, j) in the low half, B(2t + 1, j) in the high one; rows b_stride apart
  std::int64_t b_stride;
  float* c;
  std::int64_t c_stride;
  std::int64_t m, n, pairs;  ///< n is a multiple of 16
  float factor;
  RowRanges columns = {};  ///< as in GemmArgs
};

/// Only where bf16_dot_enabled().
void bf16_dot_gemm(const Bf16DotArgs& args);

}  // namespace attend::cpu
