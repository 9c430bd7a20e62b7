// Tile products of bfloat16 operands with float32 sums, computed by special instructions of the processor. Operands are
// stored in pairs: a 32-bit word holds two elements that are neighbours along k, the dimension that is summed over. The
// instructions are:
//
// - AMX (bf16_amx.hpp). It has sixteen times the rate of float32 multiply-adds.
//
// - AVX-512's dot product vdpbf16ps, with two multiply-adds per lane. On AMD (Zen 4 and later) it has twice the rate of
//   float32 multiply-adds. On Intel, vdpbf16ps is slower than float32. A Xeon with avx512_bf16 (model 207) executes one
//   vdpbf16ps with 16 lanes of two multiply-adds every second cycle. That is half the rate of its two float32 units.
//   The library therefore uses vdpbf16ps only on AMD processors.
//
// The environment variable ATTEND_CPU_BF16_DOT overrides the choice. `0` disables both instructions, `1` selects
// vdpbf16ps, and `amx` selects AMX. For tests, `emulated` selects an emulation of AMX by loops. All values except `0`
// need the SIMD target AVX-512, which ATTEND_SIMD may disable.
#pragma once

#include <cstdint>

#include "attend/tensor.hpp"
#include "cpu/gemm.hpp"

namespace attend::cpu {

enum class Bf16Unit { kNone, kDot, kAmx, kEmulatedAmx };

/// Returns the unit that bf16_dot_gemm uses in this process. The first call fixes it. Throws if ATTEND_CPU_BF16_DOT
/// requests a unit that does not exist or that this processor does not have.
Bf16Unit bf16_unit();

/// Returns whether this process computes products of bf16 tensors with bf16_dot_gemm.
inline bool bf16_dot_enabled() {
  return bf16_unit() != Bf16Unit::kNone;
}

/// Returns whether the unit is AMX, real or emulated.
inline bool bf16_by_amx() {
  return bf16_unit() == Bf16Unit::kAmx || bf16_unit() == Bf16Unit::kEmulatedAmx;
}

/// Returns whether the products of `keys` with `rows` read the bf16 elements in place, without a copy as floats. The
/// answer depends only on dtype and head_dim, so strides never change the bits of a result.
inline bool reads_pairs_directly(const Tensor& keys, const Tensor& rows) {
  return keys.dtype == DType::kBF16 && rows.dtype == DType::kBF16 && keys.shape[3] % 2 == 0 && bf16_dot_enabled();
}

/// Returns the size of the groups of neighbouring rows of A that bf16_dot_gemm computes together. For all rows of a
/// group, bf16_dot_gemm uses the widest range of any of them. The first group starts at row 0.
inline int bf16_dot_block_rows() {
  return bf16_by_amx() ? 16 : 6;
}

/// Matrix A of m rows and `pairs` pairs. One of the two strides must be 2, so the matrix may be stored by rows or by
/// columns. Words need not be aligned.
struct PairOperand {
  const std::uint16_t* data;
  std::int64_t row_stride;   ///< distance in bf16 elements from pair (i, t) to pair (i + 1, t)
  std::int64_t pair_stride;  ///< distance in bf16 elements from pair (i, t) to pair (i, t + 1)
};

/// Arguments of bf16_dot_gemm, which computes C = factor * A B for bf16 A and B, or another operation that `mode`
/// selects. Each step of the sum covers two values of k.
struct Bf16DotArgs {
  PairOperand a;
  /// Matrix B as (pairs, n) words. Its rows are b_stride words apart. The low half of word (t, j) is B(2t, j), and the
  /// high half is B(2t + 1, j).
  const std::uint32_t* b;
  std::int64_t b_stride;
  float* c;
  std::int64_t c_stride;
  std::int64_t m, n, pairs;  ///< n is a multiple of 16
  GemmMode mode = GemmMode::kStore;
  float factor = 1.0F;  ///< only with kStore
  /// This field and the fields below mean the same as the fields of GemmArgs with the same names. `depth` counts
  /// elements of k, not pairs.
  const float* row_scale = nullptr;
  const float* column_scale = nullptr;  ///< (n), with kScaleColumnsAccumulate
  PrefetchRows* prefetch = nullptr;
  RowRanges columns = {};
  RowRanges depth = {};
};

/// Configures the processor's registers for products of this thread. They stay configured for the lifetime of the
/// object.
class Bf16Registers {
 public:
  Bf16Registers();
  ~Bf16Registers();
  Bf16Registers(const Bf16Registers&) = delete;
  Bf16Registers& operator=(const Bf16Registers&) = delete;
};

/// Computes the product. Requires bf16_dot_enabled() and a live Bf16Registers on this thread.
void bf16_dot_gemm(const Bf16DotArgs& args);

}  // namespace attend::cpu
