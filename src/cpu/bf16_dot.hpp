// Tile products of bfloat16 operands by AVX-512's dot-product instruction, vdpbf16ps: two multiply-adds a lane, float32
// sums. Operands lie in pairs: two neighbours in k are the halves of one 32-bit word.
//
// Where it pays: on AMD (Zen 4 and later) it doubles the rate of a float32 multiply-add. On Intel it does not: measured
// on a Xeon with avx512_bf16 (model 207), 2 x 16 lanes every second cycle, half of what two float32 units do. So it is
// on for AMD processors that have it, off elsewhere; the environment variable ATTEND_CPU_BF16_DOT = 0 or 1 decides
// instead, where the SIMD target is AVX-512 (ATTEND_SIMD may have made it another).
#pragma once

#include <cstdint>

#include "cpu/gemm.hpp"

namespace attend::cpu {

/// Whether products of bf16 tensors go through bf16_dot_gemm in this process. Fixed at the first call.
bool bf16_dot_enabled();

/// A (m x 2 pairs): words broadcast one at a time, so it may lie in memory either way round. Words need no alignment.
struct PairOperand {
  const std::uint16_t* data;
  std::int64_t row_stride;   ///< bf16 elements from pair (i, t) to (i + 1, t)
  std::int64_t pair_stride;  ///< bf16 elements from pair (i, t) to (i, t + 1)
};

/// C = factor * A B, C += A B or C = diag(r) C + A B for bf16 A and B, two steps of k at a time.
struct Bf16DotArgs {
  PairOperand a;
  const std::uint32_t* b;  ///< (pairs, n): B(2t, j) in the low half, B(2t + 1, j) in the high one; rows b_stride apart
  std::int64_t b_stride;
  float* c;
  std::int64_t c_stride;
  std::int64_t m, n, pairs;  ///< n is a multiple of 16
  GemmMode mode = GemmMode::kStore;
  float factor = 1.0F;               ///< with kStore
  const float* row_scale = nullptr;  ///< as in GemmArgs, like all that follows; depth counts elements of k, not pairs
  PrefetchRows* prefetch = nullptr;
  RowRanges columns = {};
  RowRanges depth = {};
};

/// Only where bf16_dot_enabled().
void bf16_dot_gemm(const Bf16DotArgs& args);

}  // namespace attend::cpu
