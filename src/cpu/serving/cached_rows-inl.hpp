// Computes the products q k^T and p v of a few query rows with rows of a cache. The code reads each cache row in place.
// A result depends only on its row and key, not on other rows and keys of the same product. Included once per SIMD
// target.
#if defined(ATTEND_CPU_CACHED_ROWS_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTEND_CPU_CACHED_ROWS_INL
#undef ATTEND_CPU_CACHED_ROWS_INL
#else
#define ATTEND_CPU_CACHED_ROWS_INL
#endif

#include <hwy/cache_control.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "cpu/pack-inl.hpp"
#include "cpu/serving/decode_tiles.hpp"
#include "cpu/simd-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace attend::cpu::HWY_NAMESPACE {

/// A group of 2 kLanes neighbouring columns of a row. The element type of the row determines the lane of each column.
/// For bf16 rows, `a` has the even columns and `b` has the odd ones, because the conversion to this order takes only
/// two instructions.
struct Columns {
  Vector a, b;
};
constexpr int kChunk = 2 * kLanes;
constexpr int kKeysAtOnce = 4;
constexpr int kRowsAtOnce = 4;
// Number of vectors of sums that can stay in registers together with the operands of a product.
constexpr int kSums = HWY_TARGET <= HWY_AVX3 ? 16 : 8;

HWY_INLINE Columns even_and_odd(hn::Vec<UintTag> pairs) {
  return {hn::BitCast(kFloats, hn::ShiftLeft<16>(pairs)),
          hn::BitCast(kFloats, hn::And(pairs, hn::Set(kUints, 0xffff0000U)))};
}

HWY_INLINE Columns load_columns(const float* at) {
  return {hn::LoadU(kFloats, at), hn::LoadU(kFloats, at + kLanes)};
}
HWY_INLINE Columns load_columns(const core::BFloat16* at) {
  const hn::Repartition<std::uint16_t, FloatTag> halves;
  return even_and_odd(hn::BitCast(kUints, hn::LoadU(halves, reinterpret_cast<const std::uint16_t*>(at))));
}
HWY_INLINE Columns load_columns(const core::Half* at) {
  return {load_float(at), load_float(at + kLanes)};
}

/// Loads the first `count` < kChunk columns and fills the others with zeros. Reads nothing beyond column `count`.
template <class T>
HWY_INLINE Columns load_columns(const T* at, std::int64_t count) {
  HWY_ALIGN T columns[kChunk] = {};
  std::memcpy(columns, at, static_cast<std::size_t>(count) * sizeof(T));
  return load_columns(columns);
}
#if HWY_TARGET <= HWY_AVX3  // these targets have masked loads
HWY_INLINE Columns load_columns(const float* at, std::int64_t count) {
  const auto valid = static_cast<std::size_t>(count);
  const auto behind_a = valid > kLanes ? valid - kLanes : 0;
  return {hn::MaskedLoad(hn::FirstN(kFloats, valid), kFloats, at),
          hn::MaskedLoad(hn::FirstN(kFloats, behind_a), kFloats, at + kLanes)};
}
HWY_INLINE Columns load_columns(const core::BFloat16* at, std::int64_t count) {
  const hn::Repartition<std::uint16_t, FloatTag> halves;
  const auto valid = hn::FirstN(halves, static_cast<std::size_t>(count));
  return even_and_odd(hn::BitCast(kUints, hn::MaskedLoad(valid, halves, reinterpret_cast<const std::uint16_t*>(at))));
}
#endif

/// Loads `count` > 0 columns of a query row with elements of type Q, in the lane order that Columns has for type T. T
/// is float or Q.
template <class T, class Q>
HWY_INLINE Columns query_columns(const Q* at, std::int64_t count) {
  if constexpr (!std::is_same_v<T, Q>) {
    return {load_partial(at, count), load_partial(at + kLanes, count - kLanes)};
  } else {
    return count >= kChunk ? load_columns(at) : load_columns(at, count);
  }
}

/// Stores `count` columns as a row with elements of type T. The input consists of floats in the lane order that Columns
/// has for type T.
HWY_INLINE void store_columns(const float* from, float* to, std::int64_t count) {
  std::copy_n(from, count, to);
}
HWY_INLINE void store_columns(const float* from, core::Half* to, std::int64_t count) {
  for (std::int64_t c = 0; c < count; ++c) to[c] = core::to_half(from[c]);
}
HWY_INLINE void store_columns(const float* from, core::BFloat16* to, std::int64_t count) {
  for (std::int64_t c = 0; c < count; ++c) {
    const std::int64_t in_chunk = c % kChunk;
    to[c] = core::to_bfloat16(from[c - in_chunk + in_chunk / 2 + (in_chunk % 2) * kLanes]);
  }
}

/// Prefetches rows while other rows are multiplied, a few cache lines at a time. The prefetches are spread evenly over
/// the products, because a processor stalls if too many lines are in flight. Rows are prefetched in groups of four: the
/// first line of all four rows, then the second line of all four, and so on. Memory has a higher rate if the four rows
/// are in different regions.
class LinesAhead {
 public:
  /// The argument `bytes_multiplied` is the number of bytes that all query rows together multiply with each of the
  /// `count` rows.
  LinesAhead(const void* const* rows, std::int64_t count, std::int64_t row_bytes, std::int64_t bytes_multiplied)
      : rows_(rows),
        end_(rows + count / kAtOnce * kAtOnce),
        row_bytes_(row_bytes),
        bytes_for_lines_(kAtOnce * bytes_multiplied / ceil_div(row_bytes, kLine)) {}

  /// Must be called after `bytes` bytes of columns have been multiplied. Prefetches the lines that are due.
  HWY_INLINE void go(std::int64_t bytes) {
    due_ += bytes;
    while (due_ >= bytes_for_lines_ && rows_ != end_) {
      due_ -= bytes_for_lines_;
      for (int n = 0; n < kAtOnce; ++n) hwy::Prefetch(static_cast<const char*>(rows_[n]) + at_);
      at_ += kLine;
      if (at_ < row_bytes_) continue;
      at_ = 0;
      rows_ += kAtOnce;
    }
  }
  /// Calls go() without inlining it, which makes the machine code of rarely executed callers smaller.
  HWY_NOINLINE void go_once(std::int64_t bytes) { go(bytes); }

 private:
  static constexpr int kAtOnce = 4;
  static constexpr std::int64_t kLine = 64;
  const void* const* rows_;
  const void* const* end_;
  std::int64_t row_bytes_;
  std::int64_t bytes_for_lines_;
  std::int64_t at_ = 0;
  std::int64_t due_ = 0;
};

/// Forces the compiler to keep a vector in a register. Otherwise the compiler would load the vector again for each use,
/// and these loads would limit the speed of the products.
HWY_INLINE Vector in_register(Vector v) {
#if HWY_ARCH_X86 && HWY_COMPILER_GCC
  asm("" : "+v"(v.raw));
#endif
  return v;
}

/// Adds all groups of four lanes of a vector. Returns the four sums.
template <class Tag>
HWY_INLINE hn::Vec<hn::Full128<float>> sum_of_blocks(Tag /*tag*/, hn::Vec<Tag> v) {
  if constexpr (hn::MaxLanes(Tag()) == 4) {
    return v;
  } else {
    const hn::Half<Tag> half;
    return sum_of_blocks(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  }
}

/// Returns four sums. Each is the sum of the lanes of one of the four vectors.
HWY_INLINE hn::Vec<hn::Full128<float>> sums_of_lanes(Vector v0, Vector v1, Vector v2, Vector v3) {
  const hn::Repartition<double, FloatTag> pairs;
  const auto halves_of = [&](Vector even, Vector odd) HWY_ATTR {
    return hn::BitCast(pairs,
                       hn::Add(hn::InterleaveLower(kFloats, even, odd), hn::InterleaveUpper(kFloats, even, odd)));
  };
  const auto low = halves_of(v0, v1);
  const auto high = halves_of(v2, v3);
  const Vector of_blocks = hn::Add(hn::BitCast(kFloats, hn::InterleaveLower(pairs, low, high)),
                                   hn::BitCast(kFloats, hn::InterleaveUpper(pairs, low, high)));
  return sum_of_blocks(kFloats, of_blocks);
}

/// Stores the scores of each row for two or four keys. A score is the sum of a vector's lanes. The scores of
/// neighbouring keys are `step` floats apart.
template <int kRows>
HWY_INLINE void store_scores(const Vector (&sums)[kRows][4], float* scores, std::int64_t step) {
  for (int r = 0; r < kRows; ++r) {
    const auto of_row = sums_of_lanes(sums[r][0], sums[r][1], sums[r][2], sums[r][3]);
    float* const to = scores + r * kLeaf;
    to[0] = hn::GetLane(of_row);
    to[step] = hn::ExtractLane(of_row, 1);
    to[2 * step] = hn::ExtractLane(of_row, 2);
    to[3 * step] = hn::ExtractLane(of_row, 3);
  }
}
template <int kRows>
HWY_INLINE void store_scores(const Vector (&sums)[kRows][2], float* scores, std::int64_t step) {
  for (int r = 0; r < kRows; r += 2) {
    const auto of_two = sums_of_lanes(sums[r][0], sums[r][1], sums[r + 1][0], sums[r + 1][1]);
    float* const to = scores + r * kLeaf;
    to[0] = hn::GetLane(of_two);
    to[step] = hn::ExtractLane(of_two, 1);
    to[kLeaf] = hn::ExtractLane(of_two, 2);
    to[kLeaf + step] = hn::ExtractLane(of_two, 3);
  }
}

/// Computes scores[r * kLeaf + k * step] = <q row r, key k> for kRows rows and kKeysAtOnce keys. Keys are rows of T.
/// `q` holds rows of floats, `q_stride` apart, in the lane order of load_columns(), padded with zeros to full chunks.
/// `ahead` may be null.
template <class T, int kRows>
HWY_INLINE void score_keys(const void* const* keys, std::int64_t cols, const float* q, std::int64_t q_stride,
                           float* scores, std::int64_t step, LinesAhead* ahead) {
  constexpr int kKeys = std::min(kKeysAtOnce, kSums / kRows);
  for (int first = 0; first < kKeysAtOnce; first += kKeys) {
    Vector sums[kRows][kKeys];
    for (auto& row : sums) {
      for (Vector& sum : row) sum = hn::Zero(kFloats);
    }
    const auto add = [&](std::int64_t c, const auto& load) HWY_ATTR {
      Columns k[kKeys];
      for (int key = 0; key < kKeys; ++key) k[key] = load(static_cast<const T*>(keys[first + key]) + c);
      for (int r = 0; r < kRows; ++r) {
        const Vector a = in_register(hn::LoadU(kFloats, q + r * q_stride + c));
        const Vector b = in_register(hn::LoadU(kFloats, q + r * q_stride + c + kLanes));
        for (int key = 0; key < kKeys; ++key) {
          sums[r][key] = hn::MulAdd(b, k[key].b, hn::MulAdd(a, k[key].a, sums[r][key]));
        }
      }
    };
    std::int64_t c = 0;
    if (ahead != nullptr) {
      for (; c + kChunk <= cols; c += kChunk) {
        ahead->go(kKeys * kChunk * sizeof(T));
        add(c, [](const T* at) HWY_ATTR { return load_columns(at); });
      }
    } else {
      for (; c + kChunk <= cols; c += kChunk) {
        add(c, [](const T* at) HWY_ATTR { return load_columns(at); });
      }
    }
    if (c < cols) {
      if (ahead != nullptr) ahead->go_once((cols - c) * kKeys * static_cast<std::int64_t>(sizeof(T)));
      add(c, [&](const T* at) HWY_ATTR { return load_columns(at, cols - c); });
    }
    store_scores(sums, scores + first * step, step);
  }
}

/// For each of kRows rows r, adds the sum of p[r * kLeaf + j] times value j to row r of o. j runs from 0 to count - 1,
/// in ascending order. Value j is a row of T at values[j * step]. `o` holds rows of floats, `o_stride` apart, in the
/// lane order of load_columns(), in full chunks. `ahead` may be null.
template <class T, int kRows>
HWY_INLINE void add_values(const void* const* values, std::int64_t step, LinesAhead* ahead, std::int64_t count,
                           std::int64_t cols, const float* p, float* o, std::int64_t o_stride) {
  constexpr int kMostChunks = std::min(64 / kChunk, kSums / 2 / kRows);
  const auto add_chunks = [&](std::int64_t first, auto chunks, const auto& load) HWY_ATTR {
    constexpr int kChunks = decltype(chunks)::value;
    Columns sums[kChunks][kRows];
#pragma GCC unroll 4
    for (int i = 0; i < kChunks; ++i) {
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        const float* from = o + r * o_stride + first + i * kChunk;
        sums[i][r] = {hn::LoadU(kFloats, from), hn::LoadU(kFloats, from + kLanes)};
      }
    }
    const auto add = [&](std::int64_t j) HWY_ATTR {
      const T* const value = static_cast<const T*>(values[j * step]) + first;
      Vector weights[kRows];
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) weights[r] = hn::Set(kFloats, p[r * kLeaf + j]);
#pragma GCC unroll 4
      for (int i = 0; i < kChunks; ++i) {
        const Columns v = load(value + i * kChunk);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          sums[i][r].a = hn::MulAdd(weights[r], v.a, sums[i][r].a);
          sums[i][r].b = hn::MulAdd(weights[r], v.b, sums[i][r].b);
        }
      }
    };
    if (kChunks == kMostChunks && ahead != nullptr) {
      for (std::int64_t j = 0; j < count; ++j) {
        ahead->go(kChunks * kChunk * sizeof(T));
        add(j);
      }
    } else {
      for (std::int64_t j = 0; j < count; ++j) add(j);
    }
#pragma GCC unroll 4
    for (int i = 0; i < kChunks; ++i) {
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        float* to = o + r * o_stride + first + i * kChunk;
        hn::StoreU(sums[i][r].a, kFloats, to);
        hn::StoreU(sums[i][r].b, kFloats, to + kLanes);
      }
    }
  };
  const auto load_whole = [](const T* at) HWY_ATTR { return load_columns(at); };
  std::int64_t c = 0;
  if constexpr (kMostChunks > 1) {
    constexpr int kColumns = kMostChunks * kChunk;
    for (; c + kColumns <= cols; c += kColumns) {
      add_chunks(c, std::integral_constant<int, kMostChunks>(), load_whole);
    }
  }
  const auto go_once = [&](std::int64_t columns) HWY_ATTR {
    if (ahead != nullptr) ahead->go_once(count * columns * static_cast<std::int64_t>(sizeof(T)));
  };
  for (; c + kChunk <= cols; c += kChunk) {
    if (kMostChunks > 1) go_once(kChunk);
    add_chunks(c, std::integral_constant<int, 1>(), load_whole);
  }
  if (c < cols) {
    go_once(cols - c);
    ahead = nullptr;  // saves machine code
    add_chunks(c, std::integral_constant<int, 1>(), [&](const T* at) HWY_ATTR { return load_columns(at, cols - c); });
  }
}

/// Splits `rows` rows into blocks of up to kRowsAtOnce. Calls visit(first row, number of rows as a compile-time
/// constant) for each block.
template <class Visit>
HWY_INLINE void for_row_blocks(int rows, const Visit& visit) {
  int r = 0;
  for (; r + kRowsAtOnce <= rows; r += kRowsAtOnce) visit(r, std::integral_constant<int, kRowsAtOnce>());
  if ((rows & 2) != 0) visit(r, std::integral_constant<int, 2>());
  if ((rows & 1) != 0) visit(rows - 1, std::integral_constant<int, 1>());
}

}  // namespace attend::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
