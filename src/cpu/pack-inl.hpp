// Copies rows of user tensors to float tiles, and tiles back to rows. Supports any dtype and any stride. Float copies
// are padded with zeros to full vectors. Included once per SIMD target.
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
#include "cpu/gemm.hpp"
#include "cpu/simd-inl.hpp"
#include "cpu/tiles.hpp"

HWY_BEFORE_NAMESPACE();
namespace attend::cpu::HWY_NAMESPACE {

using core::Matrix;

/// Loads `valid` <= kLanes elements at `at` as floats. The remaining lanes are zero.
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

/// Rows of floats, `stride` apart. If they were made with Readable::kVectors, full vectors may be read up to column
/// padded(cols).
struct FloatRows {
  const float* data = nullptr;
  std::int64_t stride = 0;

  [[nodiscard]] HWY_INLINE const float* row(std::int64_t r) const { return data + r * stride; }
};

enum class Readable { kElements, kVectors };

/// Copies rows [begin, begin + count) of m to dst. The copied rows are padded(m.cols) floats apart.
HWY_INLINE void pack_rows(const Matrix& m, std::int64_t begin, std::int64_t count, float* HWY_RESTRICT dst) {
  with_type(m.data, m.dtype, [&](const auto* data) HWY_ATTR {
    for (std::int64_t r = 0; r < count; ++r) {
      const auto* from = row_at(data, m, begin + r);
      float* to = dst + r * padded(m.cols);
      for (std::int64_t c = 0; c < padded(m.cols); c += kLanes) {
        hn::Store(load_partial(from + c, m.cols - c), kFloats, to + c);
      }
    }
  });
}

/// Rows of 32-bit words. A word contains two bf16 elements of one column: that of an even row in the low half, and that
/// of the next row in the high half.
struct PairRows {
  std::uint32_t* data = nullptr;
  std::int64_t stride = 0;

  // r must be even
  [[nodiscard]] HWY_INLINE const std::uint32_t* row(std::int64_t r) const { return data + r / 2 * stride; }
};

/// Returns the number of words that PairRows needs for `count` rows of `cols` columns.
[[nodiscard]] constexpr std::int64_t pair_words(std::int64_t count, std::int64_t cols) {
  return (count + 1) / 2 * padded(cols);
}

/// Copies rows [begin, begin + count) of a bf16 matrix m to `buffer` as pairs of rows. Rows of words are padded(m.cols)
/// words apart. If `count` is odd, the last row is paired with zeros.
HWY_INLINE PairRows pack_row_pairs(const Matrix& m, std::int64_t begin, std::int64_t count, std::uint32_t* buffer) {
  const auto* data = static_cast<const core::BFloat16*>(m.data);
  const PairRows pairs = {buffer, padded(m.cols)};
  for (std::int64_t r = 0; r < count; r += 2) {
    const auto* even = row_at(data, m, begin + r);
    const auto* odd = row_at(data, m, begin + r + 1);
    std::uint32_t* to = buffer + r / 2 * pairs.stride;
    for (std::int64_t c = 0; c < pairs.stride; c += kLanes) {
      const auto low = hn::ShiftRight<16>(hn::BitCast(kUints, load_partial(even + c, m.cols - c)));
      const std::int64_t odd_cols = r + 1 < count ? m.cols - c : 0;
      const auto high = hn::BitCast(kUints, load_partial(odd + c, odd_cols));
      hn::Store(hn::Or(low, high), kUints, to + c);
    }
  }
  return pairs;
}

/// Returns rows [begin, begin + count) of m as floats. The result points into m if the memory of m is suitable.
/// Otherwise it points to a copy in `buffer`, which must have room for count * padded(m.cols) floats. Unaligned rows
/// are copied, because vector loads that straddle cache lines cost more than the copy.
HWY_INLINE FloatRows float_rows(const Matrix& m, std::int64_t begin, std::int64_t count, Readable readable,
                                float* buffer) {
  const bool aligned = m.cols % 16 == 0 && m.row_stride % 16 == 0 && reinterpret_cast<std::uintptr_t>(m.data) % 64 == 0;
  if (m.dtype == DType::kF32 && (readable == Readable::kElements || aligned)) {
    return {static_cast<const float*>(m.data) + begin * m.row_stride, m.row_stride};
  }
  pack_rows(m, begin, count, buffer);
  return {buffer, padded(m.cols)};
}

/// Prefetches rows [begin, begin + count) of m.
template <bool kForWriting>
HWY_INLINE void prefetch_rows(const Matrix& m, std::int64_t begin, std::int64_t count) {
  constexpr std::int64_t kLineBytes = 64;
  const std::int64_t bytes = dtype_bytes(m.dtype);
  for (std::int64_t r = begin; r < std::min(begin + count, m.rows); ++r) {
    const char* row = static_cast<const char*>(m.data) + r * m.row_stride * bytes;
    for (std::int64_t at = 0; at < m.cols * bytes; at += kLineBytes) {
      __builtin_prefetch(row + at, kForWriting ? 1 : 0, /*locality=*/2);
    }
  }
}

/// Returns an object that prefetches up to `count` rows in num_steps steps, which overlap the arithmetic.
HWY_INLINE PrefetchRows prefetch_in_steps(const Matrix& m, std::int64_t begin, std::int64_t count, int num_steps) {
  const std::int64_t bytes = dtype_bytes(m.dtype);
  return {static_cast<const char*>(m.data) + begin * m.row_stride * bytes,
          std::clamp<std::int64_t>(m.rows - begin, 0, count), m.cols * bytes, m.row_stride * bytes, num_steps};
}

/// Transposes a matrix of 4 x 4 floats.
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

/// Transposes `count` <= 64 rows of m, starting with row `begin`: dst[c * 64 + r] = factor * m(begin + r, c). Lanes
/// from `count` to 63 are zero. Copies sixteen columns at a time through `staging` (64 x 16 floats). If kScale is
/// false, bits are copied without arithmetic, so an f32 matrix may contain any 32-bit words.
template <bool kScale>
HWY_INLINE void pack_transposed(const Matrix& m, std::int64_t begin, std::int64_t count, float factor,
                                float* HWY_RESTRICT dst) {
  constexpr std::int64_t kColumns = 16;
  HWY_ALIGN float staging[kPanel * kColumns] = {};
  const Vector scale = hn::Set(kFloats, factor);
  with_type(m.data, m.dtype, [&](const auto* data) HWY_ATTR {
    for (std::int64_t col = 0; col < m.cols; col += kColumns) {
      for (std::int64_t r = 0; r < count; ++r) {
        const auto* from = row_at(data, m, begin + r) + col;
        for (std::int64_t c = 0; c < kColumns; c += kLanes) {
          const Vector x = load_partial(from + c, m.cols - col - c);
          hn::Store(kScale ? hn::Mul(x, scale) : x, kFloats, staging + r * kColumns + c);
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
  });
}

/// Stores factor * src[0 : m.cols] as one row of m, rounded to the dtype of m. Returns false if the row contains NaN or
/// infinity before rounding.
HWY_INLINE bool store_row(const Matrix& m, std::int64_t row, const float* HWY_RESTRICT src, float factor) {
  const Vector scale = hn::Set(kFloats, factor);
  Vector not_finite = hn::Zero(kFloats);  // x - x is 0 for finite x, NaN otherwise
  with_type(m.data, m.dtype, [&](const auto* data) HWY_ATTR {
    using T = std::remove_const_t<std::remove_pointer_t<decltype(data)>>;
    T* to = const_cast<T*>(row_at(data, m, row));
    std::int64_t c = 0;
    for (; c + kLanes <= m.cols; c += kLanes) {
      const Vector x = hn::Mul(hn::LoadU(kFloats, src + c), scale);
      not_finite = hn::Add(not_finite, hn::Sub(x, x));
      store_rounded(x, to + c);
    }
    for (; c < m.cols; ++c) {
      const float x = src[c] * factor;
      not_finite = hn::Add(not_finite, hn::Set(kFloats, x - x));
      store_scalar(x, to + c);
    }
  });
  return hn::AllTrue(kFloats, hn::Eq(not_finite, hn::Zero(kFloats)));
}

}  // namespace attend::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
