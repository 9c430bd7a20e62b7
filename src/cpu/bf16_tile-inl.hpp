// Tiles of probabilities and of their gradients, rounded to bfloat16 as left operands of bf16_dot_gemm. That product
// has at least twice the rate of float products. Included once per SIMD target.
#if defined(ATTEND_CPU_BF16_TILE_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTEND_CPU_BF16_TILE_INL
#undef ATTEND_CPU_BF16_TILE_INL
#else
#define ATTEND_CPU_BF16_TILE_INL
#endif

#include <initializer_list>

#include "cpu/bf16_dot.hpp"
#include "cpu/pack-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace attend::cpu::HWY_NAMESPACE {

/// Returns whether products read P (and dS) rounded to bf16. They do if all inputs and outputs of the products are
/// bf16. The answer depends only on dtypes, so strides never change the bits of a result.
inline bool multiplies_in_bf16(std::initializer_list<DType> dtypes) {
  return std::all_of(dtypes.begin(), dtypes.end(), [](DType t) { return t == DType::kBF16; }) && bf16_dot_enabled();
}

using HalfTag = hn::Repartition<std::uint16_t, FloatTag>;
constexpr HalfTag kHalves;
constexpr int kHalfLanes = hn::MaxLanes(kHalves);

/// Rounds each lane to bf16, with ties away from zero. The upper half of a lane is the result, and the lower half is
/// undefined. A NaN whose payload has all bits set becomes zero, so the caller must detect NaN.
HWY_INLINE hn::Vec<UintTag> round_to_upper_half(Vector x) {
  return hn::Add(hn::BitCast(kUints, x), hn::Set(kUints, 0x8000));
}

/// Returns pairs of bf16 elements, one pair per lane. The low half of a lane is an element of `low`, and the high half
/// is an element of `high`.
HWY_INLINE hn::Vec<UintTag> as_pairs(Vector low, Vector high) {
  const auto upper = hn::And(round_to_upper_half(high), hn::Set(kUints, 0xffff0000));
  return hn::Or(hn::ShiftRight<16>(round_to_upper_half(low)), upper);
}

/// Returns the lanes of `first`, rounded to bf16, followed by those of `second`.
HWY_INLINE hn::Vec<HalfTag> as_halves(Vector first, Vector second) {
  return hn::ConcatOdd(kHalves, hn::BitCast(kHalves, round_to_upper_half(second)),
                       hn::BitCast(kHalves, round_to_upper_half(first)));
}

/// Rounds float rows to bf16 and stores pairs of neighbouring rows: pairs[r / 2 * stride + c] for each column c < cols.
/// Input rows are `stride` floats apart. The output may overwrite the input. If `count` is odd, the last row is paired
/// with zeros. Returns false if there was a NaN, or infinities of both signs.
HWY_INLINE bool round_row_pairs(const float* rows, std::int64_t stride, std::int64_t count, std::int64_t cols,
                                std::uint32_t* pairs) {
  Vector even_sum = hn::Zero(kFloats);
  Vector odd_sum = hn::Zero(kFloats);
  for (std::int64_t r = 0; r < count; r += 2) {
    const float* from = rows + r * stride;
    std::uint32_t* to = pairs + r / 2 * stride;
    for (std::int64_t c = 0; c < cols; c += kLanes) {
      const Vector even = hn::Load(kFloats, from + c);
      const Vector odd = r + 1 < count ? hn::Load(kFloats, from + stride + c) : hn::Zero(kFloats);
      even_sum = hn::Add(even_sum, even);
      odd_sum = hn::Add(odd_sum, odd);
      hn::Store(as_pairs(even, odd), kUints, to + c);
    }
  }
  const Vector sum = hn::Add(even_sum, odd_sum);
  return hn::AllTrue(kFloats, hn::Eq(sum, sum));
}

/// Rounds float rows to bf16 in place. Afterwards a row holds `cols` bf16 elements. The function may also write to less
/// than one vector after them.
HWY_INLINE void round_rows(float* rows, std::int64_t stride, std::int64_t count, std::int64_t cols) {
  for (std::int64_t r = 0; r < count; ++r) {
    const float* from = rows + r * stride;
    auto* to = reinterpret_cast<std::uint16_t*>(rows + r * stride);
    for (std::int64_t c = 0; c < cols; c += kHalfLanes) {
      hn::Store(as_halves(hn::Load(kFloats, from + c), hn::Load(kFloats, from + c + kLanes)), kHalves, to + c);
    }
  }
}

}  // namespace attend::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
