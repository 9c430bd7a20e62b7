// Tests the basic arithmetic of the library: Philox, dropout decisions and 16-bit conversions.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "core/half.hpp"
#include "kernels/attention/philox.cuh"
#include "kernels/attention/score_transform.cuh"
#include "kernels/attention/sequence.cuh"
#include "kernels/attention/tile_view.cuh"
#include "kernels/sm90/factored_philox.cuh"

namespace attend::test {
namespace {

using Words = std::array<uint32, 4>;

Words philox(Words counter, uint32 key0, uint32 key1) {
  const PhiloxWords out = philox_4x32_10({{counter[0], counter[1], counter[2], counter[3]}}, key0, key1);
  return {out.word[0], out.word[1], out.word[2], out.word[3]};
}

// Known answers that the authors of Philox publish (Random123, kat_vectors, philox4x32 10).
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox({0, 0, 0, 0}, 0, 0), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, 0xffffffff, 0xffffffff),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0xa4093822, 0x299f31d0),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Dropout, ThresholdIsTheRoundedProbability) {
  EXPECT_EQ(dropout_threshold(0.0), 0U);
  EXPECT_EQ(dropout_threshold(0.5), 0x80000000U);
  EXPECT_EQ(dropout_threshold(0.25), 0x40000000U);
  EXPECT_EQ(dropout_threshold(std::nextafter(1.0, 0.0)), 0xffffffffU);  // must not wrap around to 0
}

// Computes the dropout word with philox(), from the counter, the key and the word index that the header documents.
TEST(Dropout, AsksForTheDocumentedWord) {
  const uint64 seed = 0x0123456789abcdefULL, offset = 0xfedcba9876543210ULL;
  const DropMask mask = DropMask::make(seed, offset, 77, 0.3);
  for (const int64 row : {0LL, 1LL, 70000LL}) {
    for (int64 key = 0; key < 50; ++key) {
      const Words w = philox({static_cast<uint32>(key / 4), static_cast<uint32>(row), 77, 0x76543210}, 0x89abcdef,
                             0x01234567u ^ 0xfedcba98u);
      EXPECT_EQ(mask.keeps(row, key), w[key % 4] >= dropout_threshold(0.3)) << row << ", " << key;
    }
  }
}

// The dropout words can be computed from two factors, one for the row and one for a group of four keys. Checks that
// this gives the same bits, also at the limits of all index ranges.
TEST(Dropout, FactoredWordsAreTheSame) {
  constexpr uint32 kEnds[] = {0, 1, 2, 31, 32, 12345, 0x7fffffff, 0x80000000, 0xfffffffe, 0xffffffff};
  // Returns a pseudo-random number that depends only on the index.
  const auto other = [](uint64 i) { return i * 0x9e3779b97f4a7c15ULL ^ i << 29; };
  int compared = 0;
  for (uint64 i = 0; i < 200; ++i) {
    const DropMask mask = DropMask::make(other(i), other(i + 1000), static_cast<int64>(other(i) >> i % 40), 0.5);
    for (const uint32 quad : kEnds) {
      const PhiloxQuad of_quad = PhiloxQuad::of(mask, quad);
      for (const uint32 end : kEnds) {
        const uint32 row = end ^ static_cast<uint32>(other(i) >> (i % 2 == 0 ? 63 : 20));
        const PhiloxWords want = mask.words(row, quad);
        PhiloxWords got = of_quad.meet(philox_row(mask, row));
        for (int r = kFactoredRounds; r < kPhiloxRounds; ++r) got = philox_round(got, mask.key0, mask.key1, r);
        for (int w = 0; w < 4; ++w) ASSERT_EQ(got.word[w], want.word[w]) << i << ", " << row << ", " << quad;
        ++compared;
      }
    }
  }
  EXPECT_EQ(compared, 20000);
}

struct VarlenConfig {
  static constexpr bool kIsVarlen = true;
};

// Tests offsets that decrease, overlap or have arbitrary values. With any offsets, a sequence must lie within the
// tensors, and its length must not exceed seqlen_q or seqlen_k.
TEST(SequenceSpan, LiesInTheTensorsWhateverTheOffsetsSay) {
  ForwardArgs base = {};
  base.seqlen_q = 40;
  base.seqlen_k = 70;
  OptionArgs options = {};
  options.total_q = 100;
  options.total_k = 90;
  constexpr int kMost = std::numeric_limits<int>::max();
  for (const int begin : {-kMost - 1, -1, 0, 1, 89, 90, 100, 101, kMost}) {
    for (const int end : {-kMost - 1, -1, 0, 1, 41, 89, 90, 100, 101, kMost}) {
      const std::array<int, 4> offsets = {7, 7, begin, end};
      options.cu_seqlens_q = options.cu_seqlens_k = offsets.data();
      const SequenceSpan span = sequence_span<VarlenConfig>(base, options, 2);
      EXPECT_GE(span.q_begin, 0);
      EXPECT_GE(span.seqlen_q, 0);
      EXPECT_LE(span.seqlen_q, base.seqlen_q);
      EXPECT_LE(span.q_begin + span.seqlen_q, options.total_q) << begin << ", " << end;
      EXPECT_GE(span.k_begin, 0);
      EXPECT_GE(span.seqlen_k, 0);
      EXPECT_LE(span.seqlen_k, base.seqlen_k);
      EXPECT_LE(span.k_begin + span.seqlen_k, options.total_k) << begin << ", " << end;
    }
  }
}

TEST(SequenceSpan, IsWhatTheOffsetsSayWhereTheyMaySayIt) {
  ForwardArgs base = {};
  base.seqlen_q = base.seqlen_k = 40;
  OptionArgs options = {};
  options.total_q = options.total_k = 100;
  const std::array<int, 4> offsets_q = {0, 40, 40, 100}, offsets_k = {5, 6, 36, 70};
  options.cu_seqlens_q = offsets_q.data();
  options.cu_seqlens_k = offsets_k.data();
  const SequenceSpan span = sequence_span<VarlenConfig>(base, options, 1);
  EXPECT_EQ(span.batch, 0U);
  EXPECT_EQ(span.q_begin, 40);
  EXPECT_EQ(span.seqlen_q, 0);
  EXPECT_EQ(span.k_begin, 6);
  EXPECT_EQ(span.seqlen_k, 30);
}

TEST(Softcap, TanhIsAccurateNearZeroAndFarAway) {
  double worst = 0;
  for (double x = 1e-30; x < 100; x *= 1.003) {
    for (const auto f : {static_cast<float>(x), static_cast<float>(-x)}) {
      const double wanted = std::tanh(static_cast<double>(f));
      worst = std::max(worst, std::abs((tanh_fast(f) - wanted) / wanted));
    }
  }
  EXPECT_LE(worst, 0x1p-18);
  EXPECT_EQ(tanh_fast(0.0f), 0.0f);
  EXPECT_EQ(tanh_fast(INFINITY), 1.0f);
  EXPECT_EQ(tanh_fast(-INFINITY), -1.0f);
  EXPECT_TRUE(std::isnan(tanh_fast(NAN)));
  EXPECT_EQ(transform_slope(0.5f), 0.75f);
}

/// Returns the value of 16 bits by the definition of the format, from sign, exponent and fraction.
double decode(std::uint16_t bits, int exponent_bits, int fraction_bits) {
  const int exponent = (bits >> fraction_bits) & ((1 << exponent_bits) - 1);
  const int fraction = bits & ((1 << fraction_bits) - 1);
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const double sign = bits >> 15 != 0 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) return fraction != 0 ? NAN : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias - fraction_bits);
  return sign * std::ldexp(fraction + (1 << fraction_bits), exponent - bias - fraction_bits);
}

/// Returns all finite non-negative values of a format in ascending order. The index of a value equals its bits.
std::vector<double> ladder(int exponent_bits, int fraction_bits) {
  std::vector<double> values;
  const int infinity = ((1 << exponent_bits) - 1) << fraction_bits;
  for (int bits = 0; bits < infinity; ++bits)
    values.push_back(decode(static_cast<std::uint16_t>(bits), exponent_bits, fraction_bits));
  return values;
}

/// Returns the bits of the value nearest to x, with ties to even bits. Returns infinity beyond the middle between the
/// largest value and the next power of two.
std::uint16_t nearest(const std::vector<double>& values, float x) {
  const std::uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  const double magnitude = std::abs(static_cast<double>(x));
  const std::size_t above =
      static_cast<std::size_t>(std::lower_bound(values.begin(), values.end(), magnitude) - values.begin());
  if (above == 0) return sign;
  const double last_step = values.back() - values[values.size() - 2];
  const double upper = above == values.size() ? values.back() + last_step : values[above];
  const double from_below = magnitude - values[above - 1], from_above = upper - magnitude;
  const bool up = from_above < from_below || (from_above == from_below && above % 2 == 0);
  return static_cast<std::uint16_t>(sign | (up ? above : above - 1));
}

struct HalfFormat {
  using Type = core::Half;
  static constexpr int kExponentBits = 5, kFractionBits = 10;
  static Type round(float x) { return core::to_half(x); }
};
struct BFloat16Format {
  using Type = core::BFloat16;
  static constexpr int kExponentBits = 8, kFractionBits = 7;
  static Type round(float x) { return core::to_bfloat16(x); }
};

template <class Format>
class SixteenBits : public testing::Test {};
using Formats = testing::Types<HalfFormat, BFloat16Format>;
TYPED_TEST_SUITE(SixteenBits, Formats);

TYPED_TEST(SixteenBits, EveryValueWidensToItsDefinitionAndBack) {
  for (int bits = 0; bits < 0x10000; ++bits) {
    const auto b = static_cast<std::uint16_t>(bits);
    const float wide = core::to_float(typename TypeParam::Type{b});
    const double wanted = decode(b, TypeParam::kExponentBits, TypeParam::kFractionBits);
    if (std::isnan(wanted)) {
      ASSERT_TRUE(std::isnan(wide)) << bits;
      ASSERT_TRUE(std::isnan(core::to_float(TypeParam::round(wide)))) << bits;
      continue;
    }
    ASSERT_EQ(static_cast<double>(wide), wanted) << bits;
    ASSERT_EQ(std::signbit(wide), std::signbit(wanted)) << bits;
    ASSERT_EQ(TypeParam::round(wide).bits, b) << "the way back";
  }
}

// Tests floats around every value and around every midpoint of two values. Also tests floats at a fixed stride over the
// entire range.
TYPED_TEST(SixteenBits, RoundsToNearestEven) {
  const std::vector<double> values = ladder(TypeParam::kExponentBits, TypeParam::kFractionBits);
  const auto check = [&](float x) {
    ASSERT_EQ(TypeParam::round(x).bits, nearest(values, x)) << std::hexfloat << x;
    ASSERT_EQ(TypeParam::round(-x).bits, nearest(values, -x)) << std::hexfloat << -x;
  };
  for (std::size_t n = 0; n < values.size(); ++n) {
    const double next = n + 1 < values.size() ? values[n + 1] : values[n] + (values[n] - values[n - 1]);
    for (const double x : {values[n], (values[n] + next) / 2}) {
      const auto f = static_cast<float>(x);
      for (const float y : {std::nextafter(f, -INFINITY), f, std::nextafter(f, INFINITY)}) check(y);
    }
  }
  constexpr std::uint32_t kStride = 104729;  // prime, so that no pattern of low bits is missed
  for (std::uint64_t bits = 0; bits < 0x7f800000; bits += kStride)
    check(std::bit_cast<float>(static_cast<std::uint32_t>(bits)));
  check(INFINITY);
}

}  // namespace
}  // namespace attend::test
