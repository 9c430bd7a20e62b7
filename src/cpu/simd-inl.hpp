// Vector operations of the `cpu` backend: exp2, and loads and stores that convert every dtype to and from float
// vectors. Included once per SIMD target.
#if defined(ATTEND_CPU_SIMD_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTEND_CPU_SIMD_INL
#undef ATTEND_CPU_SIMD_INL
#else
#define ATTEND_CPU_SIMD_INL
#endif

#include <hwy/highway.h>

#include <limits>

#include "attend/tensor.hpp"
#include "core/half.hpp"

HWY_BEFORE_NAMESPACE();
namespace attend::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using FloatTag = hn::CappedTag<float, 16>;
using IntTag = hn::RebindToSigned<FloatTag>;
using UintTag = hn::RebindToUnsigned<FloatTag>;
using Vector = hn::Vec<FloatTag>;
constexpr FloatTag kFloats;
constexpr IntTag kInts;
constexpr UintTag kUints;
constexpr int kLanes = hn::MaxLanes(kFloats);

constexpr float kInfinity = std::numeric_limits<float>::infinity();

#if HWY_TARGET <= HWY_AVX3
/// Returns 2^f for 0 <= f < 1. Of all polynomials of degree 5 with value 1 at 0, this one has the smallest maximum
/// relative error (8.3e-8).
HWY_INLINE Vector exp2_fraction(Vector f) {
  Vector power = hn::Set(kFloats, 1.86713008e-3F);
  power = hn::MulAdd(power, f, hn::Set(kFloats, 9.01703029e-3F));
  power = hn::MulAdd(power, f, hn::Set(kFloats, 5.57999131e-2F));
  power = hn::MulAdd(power, f, hn::Set(kFloats, 2.40164450e-1F));
  power = hn::MulAdd(power, f, hn::Set(kFloats, 6.93151312e-1F));
  return hn::MulAdd(power, f, hn::Set(kFloats, 1.0F));
}
#else
/// Returns 2^f for |f| <= 1/2. Of all polynomials of degree 5 with value 1 at 0, this one has the smallest maximum
/// relative error (9e-8).
HWY_INLINE Vector exp2_fraction(Vector f) {
  Vector power = hn::Set(kFloats, 1.326472720e-3F);
  power = hn::MulAdd(power, f, hn::Set(kFloats, 9.671512640e-3F));
  power = hn::MulAdd(power, f, hn::Set(kFloats, 5.550733743e-2F));
  power = hn::MulAdd(power, f, hn::Set(kFloats, 2.402224209e-1F));
  power = hn::MulAdd(power, f, hn::Set(kFloats, 6.931469776e-1F));
  return hn::MulAdd(power, f, hn::Set(kFloats, 1.0F));
}
#endif

/// Returns 2^t for t up to 127, with a relative error below 2e-7. Returns 0 below -126, because arithmetic on subnormal
/// numbers is many times slower. Returns NaN for NaN. Writes t as n + f, where n is an integer and f is a fraction, and
/// computes 2^n 2^f.
HWY_INLINE Vector exp2(Vector t) {
// These targets have an instruction that computes t - floor(t), and one that multiplies by 2^floor(t). Both
// instructions handle -inf and NaN.
#if HWY_TARGET <= HWY_AVX3
  constexpr int kFloor = _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC;
  const __mmask16 is_normal = _mm512_cmp_ps_mask(t.raw, _mm512_set1_ps(-126.0F), _CMP_NLT_UQ);  // true for NaN too
  const Vector power = exp2_fraction(Vector{_mm512_reduce_ps(t.raw, kFloor)});
  return Vector{_mm512_maskz_scalef_ps(is_normal, power.raw, t.raw)};
#else
  const auto n = hn::NearestInt(t);
  const Vector power = exp2_fraction(hn::Sub(t, hn::ConvertTo(kFloats, n)));
  const auto two_to_n = hn::BitCast(kFloats, hn::ShiftLeft<23>(hn::Add(n, hn::Set(kInts, 127))));
  // If t is NaN, n is arbitrary, but the product is NaN for any 2^n.
  return hn::IfThenZeroElse(hn::Lt(t, hn::Set(kFloats, -126.0F)), hn::Mul(power, two_to_n));
#endif
}

/// Loads kLanes elements of a row as floats.
HWY_INLINE Vector load_float(const float* at) {
  return hn::LoadU(kFloats, at);
}

HWY_INLINE Vector load_float(const core::BFloat16* at) {
  const hn::Rebind<std::uint16_t, FloatTag> halves;
  const auto bits = hn::LoadU(halves, reinterpret_cast<const std::uint16_t*>(at));
  return hn::BitCast(kFloats, hn::ShiftLeft<16>(hn::PromoteTo(kUints, bits)));
}

HWY_INLINE Vector load_float(const core::Half* at) {
// Uses the hardware's conversion, because Highway's emulation turns infinities and NaN into finite numbers.
#if HWY_TARGET <= HWY_AVX2
  const hn::Rebind<hwy::float16_t, FloatTag> halves;
  return hn::PromoteTo(kFloats, hn::LoadU(halves, reinterpret_cast<const hwy::float16_t*>(at)));
#else
  const hn::Rebind<std::uint16_t, FloatTag> halves;
  const auto bits = hn::PromoteTo(kUints, hn::LoadU(halves, reinterpret_cast<const std::uint16_t*>(at)));
  const auto sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(kUints, 0x8000)));
  const auto magnitude = hn::And(bits, hn::Set(kUints, 0x7fff));
  // Interprets the shifted bits as a float and multiplies by 2^112. The factor is needed because the exponent bias of a
  // float is larger by 112 than that of a half. The result is exact for subnormals too.
  const Vector scaled = hn::Mul(hn::BitCast(kFloats, hn::ShiftLeft<13>(magnitude)), hn::Set(kFloats, 0x1p112F));
  const auto not_finite = hn::Gt(magnitude, hn::Set(kUints, 0x7bff));
  const auto exponent = hn::IfThenElseZero(not_finite, hn::Set(kUints, 0x7f800000));
  return hn::BitCast(kFloats, hn::Or(hn::Or(hn::BitCast(kUints, scaled), exponent), sign));
#endif
}

HWY_INLINE float to_scalar(float x) {
  return x;
}
HWY_INLINE float to_scalar(core::BFloat16 x) {
  return core::to_float(x);
}
HWY_INLINE float to_scalar(core::Half x) {
  return core::to_float(x);
}

/// Converts a vector to the type of the row, rounds it, and stores it. store_scalar() does the same for one number.
HWY_INLINE void store_rounded(Vector x, float* at) {
  hn::StoreU(x, kFloats, at);
}

HWY_INLINE void store_rounded(Vector x, core::BFloat16* at) {
  const auto bits = hn::BitCast(kUints, x);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(kUints, 1));
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(kUints, 0x7fff))));
  const auto quiet = hn::Or(hn::ShiftRight<16>(bits), hn::Set(kUints, 0x40));
  const auto is_nan = hn::RebindMask(kUints, hn::IsNaN(x));
  const hn::Rebind<std::uint16_t, FloatTag> halves;
  const auto narrow = hn::DemoteTo(halves, hn::BitCast(kInts, hn::IfThenElse(is_nan, quiet, rounded)));
  hn::StoreU(narrow, halves, reinterpret_cast<std::uint16_t*>(at));
}

HWY_INLINE void store_rounded(Vector x, core::Half* at) {
// Uses the hardware's conversion, which rounds to nearest even, because Highway's emulation may round otherwise.
#if HWY_TARGET <= HWY_AVX2
  const hn::Rebind<hwy::float16_t, FloatTag> halves;
  hn::StoreU(hn::DemoteTo(halves, x), halves, reinterpret_cast<hwy::float16_t*>(at));
#else
  HWY_ALIGN float lanes[kLanes];
  hn::Store(x, kFloats, lanes);
  for (int lane = 0; lane < kLanes; ++lane) at[lane] = core::to_half(lanes[lane]);
#endif
}

HWY_INLINE void store_scalar(float x, float* at) {
  *at = x;
}
HWY_INLINE void store_scalar(float x, core::BFloat16* at) {
  *at = core::to_bfloat16(x);
}
HWY_INLINE void store_scalar(float x, core::Half* at) {
  *at = core::to_half(x);
}

/// Calls visit(typed pointer). The pointer points to elements of the dtype, which must be f32, f16 or bf16.
template <class Visit>
HWY_INLINE auto with_type(const void* data, DType dtype, Visit visit) {
  switch (dtype) {
    case DType::kF16:
      return visit(static_cast<const core::Half*>(data));
    case DType::kBF16:
      return visit(static_cast<const core::BFloat16*>(data));
    case DType::kF32:
    case DType::kF64:  // make_problem() has refused these dtypes
    case DType::kBool:
    case DType::kF8E4M3:
    case DType::kI8:
    case DType::kI32:
    case DType::kI64:
      break;
  }
  return visit(static_cast<const float*>(data));
}

}  // namespace attend::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
