// Bounds of a mask function over the rows and keys of a tile. Generated code uses this file
// (src/expr/print_bounds.hpp). Its interval arithmetic is that of src/expr/bounds.cpp, operation by operation. Bounds
// may be wider than necessary. In that case the tile's pairs are evaluated one by one.
//
// Source: Moore, Kearfott & Cloud, Introduction to Interval Analysis (2009), chapters 2 and 5.
#pragma once

#include "../common/portable.cuh"

namespace attend {

namespace mask_bounds {

constexpr int kLeastInt = -2147483647 - 1, kMostInt = 2147483647;

struct Bools {
  bool low, high;  // `low` is set if the condition is true for all pairs, `high` if it may be true for some pair
};
struct Ints {
  int low, high;
};
struct Floats {  // the numbers from low to high, and NaN if has_nan is set
  double low, high;
  bool has_nan;
};

constexpr double kInfinite = __builtin_bit_cast(double, 0x7ff0000000000000LL);
constexpr Ints kAnyInt = {kLeastInt, kMostInt};
constexpr Bools kAnyBool = {false, true};
constexpr Floats kAnyFloat = {-kInfinite, kInfinite, true};

template <class T>
ATTEND_HOST_DEVICE T lower(T a, T b) {
  return b < a ? b : a;
}
template <class T>
ATTEND_HOST_DEVICE T higher(T a, T b) {
  return a < b ? b : a;
}

ATTEND_HOST_DEVICE bool is_one(Bools a) {
  return a.low == a.high;
}
ATTEND_HOST_DEVICE bool is_one(Ints a) {
  return a.low == a.high;
}
ATTEND_HOST_DEVICE bool is_one(Floats a) {
  return a.low == a.high && !a.has_nan;
}

ATTEND_HOST_DEVICE Bools hull(Bools a, Bools b) {
  return {a.low && b.low, a.high || b.high};
}
ATTEND_HOST_DEVICE Ints hull(Ints a, Ints b) {
  return {lower(a.low, b.low), higher(a.high, b.high)};
}
ATTEND_HOST_DEVICE Floats hull(Floats a, Floats b) {
  return {lower(a.low, b.low), higher(a.high, b.high), a.has_nan || b.has_nan};
}

// Returns an interval of integers. Integer operations wrap around, so the interval is unlimited if it exceeds the range
// of int.
ATTEND_HOST_DEVICE Ints of_range(int64 low, int64 high) {
  return low < kLeastInt || high > kMostInt ? kAnyInt : Ints{static_cast<int>(low), static_cast<int>(high)};
}
ATTEND_HOST_DEVICE Ints constant(int64 x) {
  return {static_cast<int>(x), static_cast<int>(x)};
}

// Returns the interval, widened by the rounding error of float32 at its ends.
ATTEND_HOST_DEVICE Floats widened(Floats x) {
  constexpr double kMostFloat = 3.4028234663852886e38, kRelative = 0x1p-18, kAbsolute = 0x1p-126;
  // The margin of an infinite end is infinite
  const auto margin = [](double end) { return (end < 0 ? -end : end) * kRelative + kAbsolute; };
  Floats wide = {x.low - margin(x.low), x.high + margin(x.high), x.has_nan};
  if (!(wide.low >= -kMostFloat)) wide.low = -kInfinite;  // The condition also holds for inf - inf, which is NaN
  if (!(wide.high <= kMostFloat)) wide.high = kInfinite;
  return wide;
}

ATTEND_HOST_DEVICE bool has_infinity(Floats x) {
  return x.low == -kInfinite || x.low == kInfinite || x.high == kInfinite || x.high == -kInfinite;
}

// Operations on booleans.
ATTEND_HOST_DEVICE Bools logical_and(Bools a, Bools b) {
  return {a.low && b.low, a.high && b.high};
}
ATTEND_HOST_DEVICE Bools logical_or(Bools a, Bools b) {
  return {a.low || b.low, a.high || b.high};
}
ATTEND_HOST_DEVICE Bools logical_not(Bools a) {
  return {!a.high, !a.low};
}
ATTEND_HOST_DEVICE Bools logical_xor(Bools a, Bools b) {
  return is_one(a) && is_one(b) ? Bools{a.low != b.low, a.low != b.low} : kAnyBool;
}

// Operations on integers.
ATTEND_HOST_DEVICE Ints negate(Ints a) {
  return of_range(-int64{a.high}, -int64{a.low});
}
ATTEND_HOST_DEVICE Ints absolute(Ints a) {
  if (a.low >= 0) return a;
  return of_range(a.high <= 0 ? -int64{a.high} : 0, higher(-int64{a.low}, int64{a.high}));
}
ATTEND_HOST_DEVICE Ints sign(Ints a) {
  return {(a.low > 0) - (a.low < 0), (a.high > 0) - (a.high < 0)};
}
ATTEND_HOST_DEVICE Ints bits_not(Ints a) {
  return {~a.high, ~a.low};
}
ATTEND_HOST_DEVICE Ints add(Ints a, Ints b) {
  return of_range(int64{a.low} + b.low, int64{a.high} + b.high);
}
ATTEND_HOST_DEVICE Ints subtract(Ints a, Ints b) {
  return of_range(int64{a.low} - b.high, int64{a.high} - b.low);
}
// Returns bounds from the results at the four corners, for an operation that is monotonic in each operand.
template <class Operation>
ATTEND_HOST_DEVICE Ints of_corners(Ints a, Ints b, Operation operation) {
  const int64 x = operation(a.low, b.low), y = operation(a.low, b.high), z = operation(a.high, b.low),
              w = operation(a.high, b.high);
  return of_range(lower(lower(x, y), lower(z, w)), higher(higher(x, y), higher(z, w)));
}
ATTEND_HOST_DEVICE Ints multiply(Ints a, Ints b) {
  return of_corners(a, b, [](int64 x, int64 y) { return x * y; });
}
ATTEND_HOST_DEVICE int64 floor_of_quotient(int64 x, int64 y) {
  const int64 quotient = x / y;
  return quotient - (quotient * y != x && (x < 0) != (y < 0) ? 1 : 0);
}
ATTEND_HOST_DEVICE Ints floor_divide(Ints a, Ints b) {
  if (b.low == b.high && b.low > 0) {  // a constant divisor is common, and 64-bit divisions take a hundred instructions
    const auto of = [&](int x) { return x / b.low - (x % b.low < 0 ? 1 : 0); };
    return {of(a.low), of(a.high)};
  }
  if (b.low > 0 || b.high < 0) return of_corners(a, b, floor_of_quotient);
  const int64 most = higher(a.low < 0 ? -int64{a.low} : int64{a.low}, a.high < 0 ? -int64{a.high} : int64{a.high});
  return of_range(-most, most);
}
ATTEND_HOST_DEVICE Ints floor_mod(Ints a, Ints b) {
  if (b.low == b.high && b.low > 0) {
    const Ints blocks = floor_divide(a, b);
    if (blocks.low == blocks.high) {
      const int64 first = int64{blocks.low} * b.low;
      return {static_cast<int>(a.low - first), static_cast<int>(a.high - first)};
    }
  }
  return {b.low < 0 ? b.low + 1 : 0, b.high > 0 ? b.high - 1 : 0};
}
ATTEND_HOST_DEVICE Ints least(Ints a, Ints b) {
  return {lower(a.low, b.low), lower(a.high, b.high)};
}
ATTEND_HOST_DEVICE Ints greatest(Ints a, Ints b) {
  return {higher(a.low, b.low), higher(a.high, b.high)};
}
// Returns a word in which all bits up to the highest set bit of x are set. x must not be negative.
ATTEND_HOST_DEVICE int bits_up_to(int x) {
  uint32 all = static_cast<uint32>(x) | 1u;
  for (int distance = 1; distance < 32; distance *= 2) all |= all >> distance;
  return static_cast<int>(all);
}
ATTEND_HOST_DEVICE Ints bits_and(Ints a, Ints b) {
  return a.low < 0 || b.low < 0 ? kAnyInt : Ints{0, lower(a.high, b.high)};
}
ATTEND_HOST_DEVICE Ints bits_or(Ints a, Ints b) {
  return a.low < 0 || b.low < 0 ? kAnyInt : Ints{higher(a.low, b.low), bits_up_to(higher(a.high, b.high))};
}
ATTEND_HOST_DEVICE Ints bits_xor(Ints a, Ints b) {
  return a.low < 0 || b.low < 0 ? kAnyInt : Ints{0, bits_up_to(higher(a.high, b.high))};
}
ATTEND_HOST_DEVICE bool is_shift(Ints b) {
  return b.low == b.high && b.low >= 0 && b.low <= 30;
}
ATTEND_HOST_DEVICE Ints shift_left(Ints a, Ints b) {
  return is_shift(b) ? of_range(a.low * (int64{1} << b.low), a.high * (int64{1} << b.low)) : kAnyInt;
}
ATTEND_HOST_DEVICE Ints shift_right(Ints a, Ints b) {
  if (is_shift(b)) return {a.low >> b.low, a.high >> b.low};
  return a.low >= 0 ? Ints{0, a.high} : kAnyInt;
}

// Operations on floats. Each result is widened.
ATTEND_HOST_DEVICE Floats negate(Floats a) {
  return widened({-a.high, -a.low, a.has_nan});
}
ATTEND_HOST_DEVICE Floats absolute(Floats a) {
  return widened({a.low >= 0 ? a.low : a.high <= 0 ? -a.high : 0, higher(-a.low, a.high), a.has_nan});
}
ATTEND_HOST_DEVICE Floats sign(Floats a) {
  const auto of = [](double x) { return static_cast<double>((x > 0) - (x < 0)); };
  return widened({of(a.low), of(a.high), a.has_nan});
}
template <class Operation>
ATTEND_HOST_DEVICE Floats of_corners(Floats a, Floats b, Operation operation) {
  const double x = operation(a.low, b.low), y = operation(a.low, b.high), z = operation(a.high, b.low),
               w = operation(a.high, b.high);
  if (x != x || y != y || z != z || w != w) return kAnyFloat;
  const bool has_nan = a.has_nan || b.has_nan || has_infinity(a) || has_infinity(b);
  return widened({lower(lower(x, y), lower(z, w)), higher(higher(x, y), higher(z, w)), has_nan});
}
ATTEND_HOST_DEVICE Floats add(Floats a, Floats b) {
  return of_corners(a, b, [](double x, double y) { return x + y; });
}
ATTEND_HOST_DEVICE Floats subtract(Floats a, Floats b) {
  return of_corners(a, b, [](double x, double y) { return x - y; });
}
ATTEND_HOST_DEVICE Floats multiply(Floats a, Floats b) {
  return of_corners(a, b, [](double x, double y) { return x * y; });
}
ATTEND_HOST_DEVICE Floats divide(Floats a, Floats b) {
  if (!(b.low > 0) && !(b.high < 0)) return kAnyFloat;
  return of_corners(a, b, [](double x, double y) { return x / y; });
}
ATTEND_HOST_DEVICE Floats floor_divide(Floats, Floats) {
  return kAnyFloat;
}
ATTEND_HOST_DEVICE Floats floor_mod(Floats, Floats) {
  return kAnyFloat;
}
ATTEND_HOST_DEVICE Floats least(Floats a, Floats b) {
  return widened({lower(a.low, b.low), lower(a.high, b.high), a.has_nan || b.has_nan});
}
ATTEND_HOST_DEVICE Floats greatest(Floats a, Floats b) {
  return widened({higher(a.low, b.low), higher(a.high, b.high), a.has_nan || b.has_nan});
}
// Returns bounds of the operand rounded to an integer, which differs from the operand by less than 1.
ATTEND_HOST_DEVICE Floats rounded(Floats a) {
  return widened({a.low - 1, a.high + 1, a.has_nan});
}
// Returns bounds of a square root. A float32 root differs from the exact root by less than the margin. Roots of
// negative numbers are NaN.
ATTEND_HOST_DEVICE Floats square_root(Floats a) {
  const bool has_nan = a.has_nan || a.low < 0;
  const double most = a.high > 1 ? a.high : 1;  // a root is at most the larger of its square and 1
  if (!(a.high >= 0)) return kAnyFloat;
  return {-1, most, has_nan};
}

// Comparisons. If an operand is NaN, only not_equal is true.
ATTEND_HOST_DEVICE Bools less(Ints a, Ints b) {
  return {a.high < b.low, a.low < b.high};
}
ATTEND_HOST_DEVICE Bools less_equal(Ints a, Ints b) {
  return {a.high <= b.low, a.low <= b.high};
}
ATTEND_HOST_DEVICE Bools less(Floats a, Floats b) {
  return {a.high < b.low && !a.has_nan && !b.has_nan, a.low < b.high};
}
ATTEND_HOST_DEVICE Bools less_equal(Floats a, Floats b) {
  return {a.high <= b.low && !a.has_nan && !b.has_nan, a.low <= b.high};
}
template <class T>
ATTEND_HOST_DEVICE Bools equal(T a, T b) {
  return {is_one(a) && is_one(b) && a.low == b.low, !(a.high < b.low || b.high < a.low)};
}
template <class T>
ATTEND_HOST_DEVICE Bools not_equal(T a, T b) {
  return logical_not(equal(a, b));
}

// Conversions between types.
ATTEND_HOST_DEVICE Ints to_int(Bools a) {
  return {a.low ? 1 : 0, a.high ? 1 : 0};
}
ATTEND_HOST_DEVICE Ints to_int(Floats a) {
  const auto of = [](double x) {
    return x <= kLeastInt ? kLeastInt : x >= kMostInt ? kMostInt : static_cast<int>(x);  // rounds towards zero
  };
  const Ints whole = {of(a.low), of(a.high)};
  return a.has_nan ? hull(whole, {0, 0}) : whole;
}
ATTEND_HOST_DEVICE Floats to_float(Ints a) {
  constexpr int kMostExact = 1 << 24;
  const Floats exact = {static_cast<double>(a.low), static_cast<double>(a.high), false};
  return a.low > -kMostExact && a.high < kMostExact ? exact : widened(exact);
}

template <class T>
ATTEND_HOST_DEVICE T select(Bools condition, T a, T b) {
  return is_one(condition) ? (condition.low ? a : b) : hull(a, b);
}

}  // namespace mask_bounds

// Ranges of the variables of a mask function.
struct BoundsPoint {
  mask_bounds::Ints batch, head, row, key, rows_length, keys_length;
};

}  // namespace attend
