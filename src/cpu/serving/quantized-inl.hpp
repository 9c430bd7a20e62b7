// Converts rows of 8-bit caches. The conversion to float is exact. The conversion from float uses the rounding of
// core/eight_bits.hpp. Included once per SIMD target.
#if defined(ATTEND_CPU_QUANTIZED_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTEND_CPU_QUANTIZED_INL
#undef ATTEND_CPU_QUANTIZED_INL
#else
#define ATTEND_CPU_QUANTIZED_INL
#endif

#include <cstring>

#include "core/eight_bits.hpp"
#include "core/problem.hpp"
#include "cpu/simd-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace attend::cpu::HWY_NAMESPACE {

constexpr int kWidenedAtOnce = 2 * kLanes;  // number of elements that one step converts

/// Loads kLanes elements of a row as floats.
HWY_INLINE Vector widened(const std::int8_t* at) {
  const hn::Rebind<std::int8_t, FloatTag> bytes;
  return hn::ConvertTo(kFloats, hn::PromoteTo(kInts, hn::LoadU(bytes, at)));
}

HWY_INLINE void widen(const std::int8_t* at, float* to) {
  hn::StoreU(widened(at), kFloats, to);
  hn::StoreU(widened(at + kLanes), kFloats, to + kLanes);
}

#if HWY_TARGET <= HWY_AVX2
// Converts E4M3 to float16 and then to float. The code moves the bits of exponent and fraction to their positions in a
// float16, whose exponent bias is larger by 8. The hardware converts subnormal float16 numbers exactly and at full
// speed. A NaN of E4M3 has all bits of its exponent and fraction set. For a NaN, an addition carries into the exponent,
// which becomes that of a float16 NaN.
HWY_INLINE void widen(const core::E4M3* at, float* to) {
  const hn::Repartition<std::int16_t, FloatTag> halves;
  const hn::Rebind<std::int8_t, decltype(halves)> bytes;
  const hn::Repartition<hwy::float16_t, FloatTag> of_16_bits;
  const hn::Half<decltype(of_16_bits)> half;
  const auto wide = hn::PromoteTo(halves, hn::LoadU(bytes, reinterpret_cast<const std::int8_t*>(at)));
  const auto magnitude = hn::And(hn::ShiftLeft<7>(wide), hn::Set(halves, 0x3f80));
  const auto carry = hn::And(hn::Add(magnitude, hn::Set(halves, 0x80)), hn::Set(halves, 0x4000));
  const auto sign = hn::And(wide, hn::Set(halves, static_cast<std::int16_t>(-0x8000)));
  const auto floats = hn::BitCast(of_16_bits, hn::Or(hn::Or(magnitude, carry), sign));
  const Vector bias = hn::Set(kFloats, 0x1p8F);
  hn::StoreU(hn::Mul(hn::PromoteTo(kFloats, hn::LowerHalf(half, floats)), bias), kFloats, to);
  hn::StoreU(hn::Mul(hn::PromoteTo(kFloats, hn::UpperHalf(half, floats)), bias), kFloats, to + kLanes);
}
#else
HWY_INLINE Vector widened(const core::E4M3* at) {
  const hn::Rebind<std::int8_t, FloatTag> bytes;
  const auto wide = hn::PromoteTo(kInts, hn::LoadU(bytes, reinterpret_cast<const std::int8_t*>(at)));
  const auto magnitude = hn::And(wide, hn::Set(kInts, 0x7f));
  const auto normal = hn::Add(hn::ShiftLeft<20>(magnitude), hn::Set(kInts, (127 - 7) << 23));
  const auto subnormal = hn::BitCast(kInts, hn::Mul(hn::ConvertTo(kFloats, magnitude), hn::Set(kFloats, 0x1p-9F)));
  const auto number = hn::IfThenElse(hn::Lt(magnitude, hn::Set(kInts, 8)), subnormal, normal);
  const auto is_nan = hn::Eq(magnitude, hn::Set(kInts, static_cast<std::int32_t>(core::kE4M3Nan)));
  const auto value = hn::IfThenElse(is_nan, hn::Set(kInts, 0x7fc00000), number);
  const auto sign = hn::And(wide, hn::Set(kInts, std::numeric_limits<std::int32_t>::min()));
  return hn::BitCast(kFloats, hn::Or(value, sign));
}

HWY_INLINE void widen(const core::E4M3* at, float* to) {
  hn::StoreU(widened(at), kFloats, to);
  hn::StoreU(widened(at + kLanes), kFloats, to + kLanes);
}
#endif

/// Rounds kLanes numbers to the element type. Each result is in the low byte of an integer.
HWY_INLINE hn::Vec<IntTag> narrowed(Vector x, const core::E4M3* /*type*/) {
  const auto magnitude = hn::BitCast(kInts, hn::Abs(x));
  const auto odd = hn::And(hn::ShiftRight<20>(magnitude), hn::Set(kInts, 1));
  const auto rounded = hn::Add(magnitude, hn::Add(odd, hn::Set(kInts, 0x7ffff - ((127 - 7) << 23))));
  const auto normal = hn::ShiftRight<20>(rounded);
  // Numbers from 2^14 on have the spacing 2^-9 of E4M3's subnormal numbers, so the addition of 2^14 rounds to it.
  const auto shifted = hn::BitCast(kInts, hn::Add(hn::Abs(x), hn::Set(kFloats, 0x1p14F)));
  const auto subnormal = hn::Sub(shifted, hn::Set(kInts, 0x46800000));
  const auto is_small = hn::Lt(magnitude, hn::Set(kInts, (127 - 6) << 23));
  const auto largest = hn::Set(kInts, static_cast<std::int32_t>(core::kE4M3Largest));
  const auto element = hn::Min(hn::IfThenElse(is_small, subnormal, normal), largest);
  const auto sign = hn::And(hn::BitCast(kInts, hn::ShiftRight<24>(hn::BitCast(kUints, x))), hn::Set(kInts, 0x80));
  const auto nan = hn::Set(kInts, static_cast<std::int32_t>(core::kE4M3Nan));
  return hn::IfThenElse(hn::RebindMask(kInts, hn::IsNaN(x)), nan, hn::Or(element, sign));
}

HWY_INLINE hn::Vec<IntTag> narrowed(Vector x, const std::int8_t* /*type*/) {
  const Vector number = hn::IfThenZeroElse(hn::IsNaN(x), x);
  const Vector in_range = hn::Clamp(number, hn::Set(kFloats, -128.0F), hn::Set(kFloats, 127.0F));
  return hn::And(hn::NearestInt(in_range), hn::Set(kInts, 0xff));
}

/// Calls visit(typed pointer). The pointer points to elements of the dtype, which must be f8e4m3 or i8.
template <class Visit>
HWY_INLINE void with_quantized_type(void* data, DType dtype, Visit visit) {
  if (dtype == DType::kI8) return visit(static_cast<std::int8_t*>(data));
  visit(static_cast<core::E4M3*>(data));
}

/// Converts the row at `data` to floats. Writes a multiple of kWidenedAtOnce floats, but reads nothing beyond the row.
HWY_INLINE void widen_row(const void* data, DType dtype, std::int64_t cols, float* HWY_RESTRICT to) {
  with_quantized_type(const_cast<void*>(data), dtype, [&](const auto* from) HWY_ATTR {
    using T = std::remove_const_t<std::remove_pointer_t<decltype(from)>>;
    std::int64_t c = 0;
    for (; c + kWidenedAtOnce <= cols; c += kWidenedAtOnce) widen(from + c, to + c);
    if (c == cols) return;
    HWY_ALIGN T rest[kWidenedAtOnce] = {};
    std::memcpy(rest, from + c, static_cast<std::size_t>(cols - c));
    widen(rest, to + c);
  });
}

/// Converts `count` rows at rows[n * step] to rows of floats, `stride` apart. The function is not inlined, so that keys
/// and values share one copy of its code.
HWY_NOINLINE inline void widen_rows(const void* const* rows, std::int64_t step, std::int64_t count, DType dtype,
                                    std::int64_t cols, float* HWY_RESTRICT to, std::int64_t stride) {
  for (std::int64_t n = 0; n < count; ++n) widen_row(rows[n * step], dtype, cols, to + n * stride);
}

/// Stores x / descale, rounded, as the only row of m. `x` holds m.cols floats and can be read in full vectors.
HWY_INLINE void store_quantized(const core::Matrix& m, const float* HWY_RESTRICT x, float descale) {
  const hn::Rebind<std::uint8_t, FloatTag> bytes;
  const Vector factor = hn::Set(kFloats, descale);
  with_quantized_type(m.data, m.dtype, [&](auto* typed) HWY_ATTR {
    auto* to = reinterpret_cast<std::uint8_t*>(typed);
    for (std::int64_t c = 0; c < m.cols; c += kLanes) {
      const auto elements = hn::DemoteTo(bytes, narrowed(hn::Div(hn::LoadU(kFloats, x + c), factor), typed));
      if (c + kLanes <= m.cols) {
        hn::StoreU(elements, bytes, to + c);
        continue;
      }
      HWY_ALIGN std::uint8_t rest[kLanes];
      hn::Store(elements, bytes, rest);
      std::memcpy(to + c, rest, static_cast<std::size_t>(m.cols - c));
    }
  });
}

}  // namespace attend::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
