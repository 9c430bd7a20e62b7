// Tile products of bfloat16 operands with float32 sums, by the instructions of the processor. Operands are stored in
// pairs: two neighbours in k are the halves of a 32-bit word.
//
// - AMX (bf16_amx.hpp): sixteen times the rate of float32 multiply-adds.
//
// - AVX-512's dot product, vdpbf16ps: two multiply-adds per lane. On AMD (Zen 4 and later) it has twice the rate of
//   float32 multiply-adds. On Intel it is slower: a Xeon with avx512_bf16 (model 207) computes 2 x 16 lanes every
//   second cycle, half the rate of its two float32 units. The library therefore uses vdpbf16ps only on AMD processors.
//
// The environment variable ATTEND_CPU_BF16_DOT overrides the choice: 0 for neither, 1 for vdpbf16ps, amx, or emulated
// (amx with loops instead of its instructions, for tests). All values except 0 need the SIMD target AVX-512, which
// ATTEND_SIMD may disable.
#pragma once

#include <cstdint>

#include "attend/tensor.hpp"
#include "cpu/gemm.hpp"

namespace attend::cpu {

enum class Bf16Unit { kNone, kDot, kAmx, kEmulatedAmx };

/// Returns the unit of bf16_dot_gemm in this process, fixed at the first call. Throws if ATTEND_CPU_BF16_DOT requests a
/// unit that does not exist or that this processor does not have.
Bf16Unit bf16_unit();

/// Returns whether bf16_dot_gemm computes products of bf16 tensors in this process.
inline bool bf16_dot_enabled() {
  return bf16_unit() != Bf16Unit::kNone;
}

/// Returns whether the unit is AMX, real or emulated.
inline bool bf16_by_amx() {
  return bf16_unit() == Bf16Unit::kAmx || bf16_unit() == Bf16Unit::kEmulatedAmx;
}

/// Returns whether the products of `keys` with `rows` read the bf16 elements in place, without a float copy. Depends
/// only on dtype and head_dim, so that a layout never changes the bits of a result.
inline bool reads_pairs_directly(const Tensor& keys, const Tensor& rows) {
  return keys.dtype == DType::kBF16 && rows.dtype == DType::kBF16 && keys.shape[3] % 2 == 0 && bf16_dot_enabled();
}

/// Returns the number of neighbouring rows of A, counted from the first, for which bf16_dot_gemm uses the widest range
/// of all.
inline int bf16_dot_block_rows() {
  return bf16_by_amx() ? 16 : 6;
}

/// A (m x 2 pairs), in either memory order: one of the strides is 2. Words need no alignment.
struct PairOperand {
  const std::uint16_t* data;
  std::int64_t row_stride;   ///< bf16 elements from pair (i, t) to (i + 1, t)
  std::int64_t pair_stride;  ///< bf16 elements from pair (i, t) to (i, t + 1)
};

/// Arguments of C = factor * A B, or as GemmMode states, for bf16 A and B. Each step covers two values of k.
struct Bf16DotArgs {
  PairOperand a;
  const std::uint32_t* b;  ///< (pairs, n): B(2t, j) in the low half, B(2t + 1, j) in the high half; rows b_stride apart
  std::int64_t b_stride;
  float* c;
  std::int64_t c_stride;
  std::int64_t m, n, pairs;  ///< n is a multiple of 16
  GemmMode mode = GemmMode::kStore;
  float factor = 1.0F;               ///< only with kStore
  const float* row_scale = nullptr;  ///< as in GemmArgs, like the fields below; depth counts elements of k, not pairs
  const float* column_scale = nullptr;  ///< (n), with kScaleColumnsAccumulate
  PrefetchRows* prefetch = nullptr;
  RowRanges columns = {};
  RowRanges depth = {};
};

/// Configures the processor's registers for products of this thread, for the lifetime of the object.
class Bf16Registers {
 public:
  Bf16Registers();
  ~Bf16Registers();
  Bf16Registers(const Bf16Registers&) = delete;
  Bf16Registers& operator=(const Bf16Registers&) = delete;
};

/// Requires bf16_dot_enabled() and a live Bf16Registers.
void bf16_dot_gemm(const Bf16DotArgs& args);

}  // namespace attend::cpu
