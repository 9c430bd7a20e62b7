// Computes the products S^T = K Q^T and dP^T = V dO^T. It multiplies floats, or bfloat16 elements directly if the
// processor does that faster. Included once per SIMD target.
#if defined(ATTEND_CPU_SCORE_PRODUCT_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTEND_CPU_SCORE_PRODUCT_INL
#undef ATTEND_CPU_SCORE_PRODUCT_INL
#else
#define ATTEND_CPU_SCORE_PRODUCT_INL
#endif

#include "cpu/bf16_dot.hpp"
#include "cpu/gemm-inl.hpp"
#include "cpu/score-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace attend::cpu::HWY_NAMESPACE {

/// Computes factor * <key row, query row> for one query head. The tensor of the key rows is k or v, and the tensor of
/// the query rows is q or dout.
class ScoreProduct {
 public:
  ScoreProduct(const core::Problem& p, const core::Sequence& s, const Tensor& keys, const Tensor& rows,
               std::int64_t head, float factor)
      : keys_(core::k_matrix(keys, s, head / p.heads_per_group())),
        rows_(core::q_matrix(rows, s, head)),
        factor_(factor),
        in_pairs_(reads_pairs_directly(keys, rows)) {}

  /// Transposes `count` <= 64 query rows, starting with `begin`, to `packed`, which holds cols * 64 floats.
  void pack(std::int64_t begin, std::int64_t count, float* packed) const {
    if (in_pairs_) {
      HWY_ALIGN std::uint16_t copy[kPanel * core::kMaxHeadDim];
      pack_transposed<false>(as_pairs(begin, count, copy), 0, count, 1.0F, packed);
    } else {
      pack_transposed<true>(rows_, begin, count, factor_, packed);
    }
  }

  /// Writes the products of the tile's keys and the packed rows to c[key * stride + lane]. `keys` holds the tile's keys
  /// as floats.
  void multiply(const ScoreTile& tile, FloatRows keys, const float* packed, float* c, RowRanges columns,
                PrefetchRows* prefetch) const {
    if (in_pairs_) {
      const auto* first_key = static_cast<const std::uint16_t*>(keys_.data) + tile.key_begin * keys_.row_stride;
      bf16_dot_gemm({.a = {first_key, keys_.row_stride, 2},
                     .b = reinterpret_cast<const std::uint32_t*>(packed),
                     .b_stride = kPanel,
                     .c = c,
                     .c_stride = tile.stride,
                     .m = tile.num_keys,
                     .n = tile.lanes(),
                     .pairs = keys_.cols / 2,
                     .factor = factor_,
                     .prefetch = prefetch,
                     .columns = columns});
      return;
    }
    gemm({.a = {keys.data, keys.stride, 1},
          .b = {packed, kPanel},
          .c = c,
          .c_stride = tile.stride,
          .m = tile.num_keys,
          .n = tile.lanes(),
          .k = keys_.cols,
          .prefetch = prefetch,
          .columns = columns});
  }

 private:
  /// Copies query rows [begin, begin + count) to `copy`. In the returned matrix, each pair of bf16 elements is one
  /// opaque 32-bit column. The rows must be copied because pairs may be unaligned in the tensor.
  [[nodiscard]] Matrix as_pairs(std::int64_t begin, std::int64_t count, std::uint16_t* copy) const {
    const auto* from = static_cast<const std::uint16_t*>(rows_.data);
    for (std::int64_t r = 0; r < count; ++r) {
      std::copy_n(from + (begin + r) * rows_.row_stride, rows_.cols, copy + r * rows_.cols);
    }
    return {copy, DType::kF32, count, rows_.cols / 2, rows_.cols / 2};
  }

  Matrix keys_;
  Matrix rows_;
  float factor_;
  bool in_pairs_;
};

}  // namespace attend::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
