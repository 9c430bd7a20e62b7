// Rows of user tensors into float tiles and back: any dtype, any stride, zero-filled to whole vectors.
// Every reader says whether all that it read was finite. Included once per SIMD target.
#if defined(ATTEND_CPU_PACK_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTEND_CPU_PACK_INL
#undef ATTEND_CPU_PACK_INL
#else
#define ATTEND_CPU_PACK_INL
#endif

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/problem.hpp"
#include "cpu/simd-inl.hpp"
#include "cpu/tiles.hpp"

HWY_BEFORE_NAMESPACE();
namespace attend::cpu::HWY_NAMESPACE {

using core::Matrix;

/// What a reader accepts without calling the data non-finite.
enum class Finite {
  kRequired,         ///< no NaN, no infinity
  kOrMinusInfinity,  ///< -inf too: a bias may mask with it
};

/// Collects over many vectors whether all their lanes were acceptable.
template <Finite kFinite>
class FiniteCheck {
 public:
  HWY_INLINE FiniteCheck() : bad_(hn::Zero(kFloats)) {}
  HWY_INLINE void see(Vector x) {
    const Vector tested = kFinite == Finite::kRequired ? hn::Abs(x) : x;
    bad_ = hn::Or(bad_, hn::VecFromMask(kFloats, hn::Not(hn::Lt(tested, hn::Set(kFloats, kInfinity)))));
  }
  [[nodiscard]] HWY_INLINE bool ok() const {
    const auto bits = hn::BitCast(kInts, bad_);
    return hn::AllTrue(kInts, hn::Eq(bits, hn::Zero(kInts)));
  }

 private:
  Vector bad_;
};

/// The `valid` <= kLanes elements at `at` as float, then zeros.
template <class T>
HWY_INLINE Vector load_partial(const T* at, std::int64_t valid) {
  if (valid >= kLanes) return load_float(at);
  HWY_ALIGN float lanes[kLanes] = {};
  for (std::int64_t lane = 0; lane < valid; ++lane) lanes[lane] = to_scalar(at[lane]);
  return hn::Load(kFloats, lanes);
}

template <class T>
HWY_INLINE const T* row_at(const T* data, const Matrix& m, std::int64_t row) {
  return data + row * m.row_stride;
}

/// Rows [begin, begin + count) of m into dst, `dst_stride` >= padded(m.cols) floats apart.
HWY_INLINE bool pack_rows(const Matrix& m, std::int64_t begin, std::int64_t count, float* HWY_RESTRICT dst,
                          std::int64_t dst_stride) {
  return with_type(m.data, m.dtype, [&](const auto* data) HWY_ATTR {
    FiniteCheck<Finite::kRequired> finite;
    for (std::int64_t r = 0; r < count; ++r) {
      const auto* from = row_at(data, m, begin + r);
      float* to = dst + r * dst_stride;
      for (std::int64_t c = 0; c < padded(m.cols); c += kLanes) {
        const Vector x = load_partial(from + c, m.cols - c);
        finite.see(x);
        hn::Store(x, kFloats, to + c);
      }
    }
    return finite.ok();
  });
}

/// The same into column panels of 64 (see panels_size) that hold `capacity` rows each.
HWY_INLINE bool pack_panels(const Matrix& m, std::int64_t begin, std::int64_t count, std::int64_t capacity,
                            float* HWY_RESTRICT dst) {
  bool finite = true;
  for (std::int64_t col = 0; col < m.cols; col += kPanel) {
    Matrix panel = m;
    panel.data = static_cast<char*>(m.data) + col * dtype_bytes(m.dtype);
    panel.cols = std::min<std::int64_t>(kPanel, m.cols - col);
    finite &= pack_rows(panel, begin, count, dst + col * capacity, kPanel);
  }
  return finite;
}

/// Four vectors of four lanes, transposed.
HWY_INLINE void transpose_4x4(const float* from, std::int64_t from_stride, float* to, std::int64_t to_stride) {
  const hn::Full128<float> quad;
  const hn::Repartition<double, decltype(quad)> pairs;
  const auto r0 = hn::LoadU(quad, from);
  const auto r1 = hn::LoadU(quad, from + from_stride);
  const auto r2 = hn::LoadU(quad, from + 2 * from_stride);
  const auto r3 = hn::LoadU(quad, from + 3 * from_stride);
  const auto low01 = hn::BitCast(pairs, hn::InterleaveLower(quad, r0, r1));
  const auto low23 = hn::BitCast(pairs, hn::InterleaveLower(quad, r2, r3));
  const auto high01 = hn::BitCast(pairs, hn::InterleaveUpper(quad, r0, r1));
  const auto high23 = hn::BitCast(pairs, hn::InterleaveUpper(quad, r2, r3));
  hn::StoreU(hn::BitCast(quad, hn::InterleaveLower(pairs, low01, low23)), quad, to);
  hn::StoreU(hn::BitCast(quad, hn::InterleaveUpper(pairs, low01, low23)), quad, to + to_stride);
  hn::StoreU(hn::BitCast(quad, hn::InterleaveLower(pairs, high01, high23)), quad, to + 2 * to_stride);
  hn::StoreU(hn::BitCast(quad, hn::InterleaveUpper(pairs, high01, high23)), quad, to + 3 * to_stride);
}

/// Rows [begin, begin + count) of m, count <= 64, transposed: dst[c * 64 + r] = factor * m(begin + r, c); lanes from count
/// to 63 are zero. Goes through `staging` (64 x 16 floats) sixteen columns at a time.
template <Finite kFinite>
HWY_INLINE bool pack_transposed(const Matrix& m, std::int64_t begin, std::int64_t count, float factor,
                                float* HWY_RESTRICT dst) {
  constexpr std::int64_t kColumns = 16;
  HWY_ALIGN float staging[kPanel * kColumns] = {};
  const Vector scale = hn::Set(kFloats, factor);
  return with_type(m.data, m.dtype, [&](const auto* data) HWY_ATTR {
    FiniteCheck<kFinite> finite;
    for (std::int64_t col = 0; col < m.cols; col += kColumns) {
      for (std::int64_t r = 0; r < count; ++r) {
        const auto* from = row_at(data, m, begin + r) + col;
        for (std::int64_t c = 0; c < kColumns; c += kLanes) {
          const Vector x = load_partial(from + c, m.cols - col - c);
          finite.see(x);
          hn::Store(hn::Mul(x, scale), kFloats, staging + r * kColumns + c);
        }
      }
      const std::int64_t columns = std::min<std::int64_t>(kColumns, m.cols - col);
      if (columns == kColumns) {
        for (std::int64_t r = 0; r < kPanel; r += 4) {
          for (std::int64_t c = 0; c < kColumns; c += 4) {
            transpose_4x4(staging + r * kColumns + c, kColumns, dst + (col + c) * kPanel + r, kPanel);
          }
        }
      } else {
        for (std::int64_t c = 0; c < columns; ++c) {
          for (std::int64_t r = 0; r < kPanel; ++r) dst[(col + c) * kPanel + r] = staging[r * kColumns + c];
        }
      }
    }
    return finite.ok();
  });
}

/// One row of m = factor * src[0 : m.cols], rounded to m's dtype.
HWY_INLINE void store_row(const Matrix& m, std::int64_t row, const float* HWY_RESTRICT src, float factor) {
  const Vector scale = hn::Set(kFloats, factor);
  with_type(m.data, m.dtype, [&](const auto* data) HWY_ATTR {
    using T = std::remove_const_t<std::remove_pointer_t<decltype(data)>>;
    T* to = const_cast<T*>(row_at(data, m, row));
    std::int64_t c = 0;
    for (; c + kLanes <= m.cols; c += kLanes) store_rounded(hn::Mul(hn::LoadU(kFloats, src + c), scale), to + c);
    for (; c < m.cols; ++c) store_scalar(src[c] * factor, to + c);
  });
}

}  // namespace attend::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
