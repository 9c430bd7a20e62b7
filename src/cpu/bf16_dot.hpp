// Tile products of bfloat16 operands with float32 sums, by what the processor has for them. Operands lie in pairs: two
// neighbours in k are the halves of one 32-bit word.
//
//  - AMX (bf16_amx.hpp): sixteen times the rate of float32 multiply-adds.
//  - AVX-512's dot product, vdpbf16ps: two multiply-adds a lane. On AMD (Zen 4 and later) that doubles the rate of a
//    float32 multiply-add. On Intel it does not: measured on a Xeon with avx512_bf16 (model 207), 2 x 16 lanes every
//    second cycle, half of what two float32 units do. So it is on for AMD processors that have it, off elsewhere.
//
// The environment variable ATTEND_CPU_BF16_DOT decides instead: 0 for neither, 1 for vdpbf16ps, amx, or emulated (amx
// with loops for its instructions, for tests). All but 0 need the SIMD target AVX-512 (ATTEND_SIMD may have made it
// another).
#pragma once

#include <cstdint>

#include "attend/tensor.hpp"
#include "cpu/gemm.hpp"

namespace attend::cpu {

enum class Bf16Unit { kNone, kDot, kAmx, kEmulatedAmx };

/// By what bf16_dot_gemm multiplies in this process. Fixed at the first call. Throws where ATTEND_CPU_BF16_DOT asks for
/// a unit that this processor lacks or that does not exist.
Bf16Unit bf16_unit();

/// Whether products of bf16 tensors go through bf16_dot_gemm in this process.
inline bool bf16_dot_enabled() {
  return bf16_unit() != Bf16Unit::kNone;
}

/// Whether that is AMX, real or not.
inline bool bf16_by_amx() {
  return bf16_unit() == Bf16Unit::kAmx || bf16_unit() == Bf16Unit::kEmulatedAmx;
}

/// Whether the products of `keys` with `rows` are taken of their own bf16 elements, with no float copy of them. Decided
/// by dtype and head_dim alone, so that no layout changes the bits of a result.
inline bool reads_pairs_directly(const Tensor& keys, const Tensor& rows) {
  return keys.dtype == DType::kBF16 && rows.dtype == DType::kBF16 && keys.shape[3] % 2 == 0 && bf16_dot_enabled();
}

/// Of so many neighbouring rows of A, counted from the first, bf16_dot_gemm takes the widest range for all.
inline int bf16_dot_block_rows() {
  return bf16_by_amx() ? 16 : 6;
}

/// A (m x 2 pairs), in memory either way round: one of the strides is 2. Words need no alignment.
struct PairOperand {
  const std::uint16_t* data;
  std::int64_t row_stride;   ///< bf16 elements from pair (i, t) to (i + 1, t)
  std::int64_t pair_stride;  ///< bf16 elements from pair (i, t) to (i, t + 1)
};

/// C = factor * A B, or as GemmMode says, for bf16 A and B, two steps of k at a time.
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
  const float* column_scale = nullptr;  ///< (n), with kScaleColumnsAccumulate
  PrefetchRows* prefetch = nullptr;
  RowRanges columns = {};
  RowRanges depth = {};
};

/// What a thread's products need of the processor, held while it computes any.
class Bf16Registers {
 public:
  Bf16Registers();
  ~Bf16Registers();
  Bf16Registers(const Bf16Registers&) = delete;
  Bf16Registers& operator=(const Bf16Registers&) = delete;
};

/// Only where bf16_dot_enabled(), and under Bf16Registers.
void bf16_dot_gemm(const Bf16DotArgs& args);

}  // namespace attend::cpu
