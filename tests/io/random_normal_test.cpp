// Tests the generated data. The data must have the same bits on every machine, and must be normally distributed.
#include "io/random_normal.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <numbers>
#include <vector>

#include "kernels/attention/philox.cuh"

namespace attend::test {
namespace {

using io::NormalStream;

std::vector<float> values(std::size_t count, std::uint64_t seed, NormalStream stream, std::uint64_t first = 0) {
  std::vector<float> out(count);
  io::fill_normal(out, seed, stream, first);
  return out;
}

TEST(FillNormal, IsTheDocumentedFormula) {
  constexpr std::uint64_t kSeed = 0x123456789abcdef0;
  const std::vector<float> found = values(40000, kSeed, NormalStream::kV);
  for (std::uint32_t n = 0; n < 10000; ++n) {
    const PhiloxWords words = philox_4x32_10({{n, 0, 2, 1}}, 0x9abcdef0, 0x12345678);
    for (int pair = 0; pair < 4; pair += 2) {
      const double radius = std::sqrt(-2 * std::log((words.word[pair] + 1.0) / 0x1p32));
      const double angle = 2 * std::numbers::pi * (words.word[pair + 1] / 0x1p32);
      ASSERT_NEAR(found[4 * n + pair], radius * std::cos(angle), 6e-7) << n;
      ASSERT_NEAR(found[4 * n + pair + 1], radius * std::sin(angle), 6e-7) << n;
    }
  }
}

TEST(FillNormal, BitsNeverChange) {
  // The hash is FNV-1a over the bits of the first 100000 values. If these bits changed, every stored data set would be
  // invalid.
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const float x : values(100000, 42, NormalStream::kQ)) {
    hash = (hash ^ std::bit_cast<std::uint32_t>(x)) * 0x100000001b3;
  }
  EXPECT_EQ(hash, 9122883004134098933U);
}

TEST(FillNormal, PiecesMakeTheWhole) {
  const std::vector<float> whole = values(1000, 7, NormalStream::kK);
  for (const std::size_t piece : {1, 3, 4, 250, 999}) {
    for (std::size_t first = 0; first < whole.size(); first += piece) {
      const std::size_t count = std::min(piece, whole.size() - first);
      const std::vector<float> part = values(count, 7, NormalStream::kK, first);
      ASSERT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + first)) << first;
    }
  }
}

TEST(FillNormal, SeedsAndStreamsDiffer) {
  const std::vector<float> base = values(64, 1, NormalStream::kQ);
  EXPECT_NE(base, values(64, 2, NormalStream::kQ));
  EXPECT_NE(base, values(64, 1ULL << 32 | 1, NormalStream::kQ));
  EXPECT_NE(base, values(64, 1, NormalStream::kK));
  EXPECT_NE(base, values(64, 1, NormalStream::kQ, 1ULL << 34));  // seeds above 32 bits use the high word of the counter
}

TEST(FillNormal, MomentsAreThoseOfANormal) {
  constexpr double kCount = 1 << 20;
  double sum[5] = {};
  double largest = 0;
  for (const double x : values(1 << 20, 42, NormalStream::kQ)) {
    for (int power = 1; power <= 4; ++power) sum[power] += std::pow(x, power);
    largest = std::max(largest, std::abs(x));
  }
  const double sigma = 1 / std::sqrt(kCount);
  EXPECT_NEAR(sum[1] / kCount, 0, 5 * sigma);
  EXPECT_NEAR(sum[2] / kCount, 1, 5 * sigma * std::sqrt(2));
  EXPECT_NEAR(sum[3] / kCount, 0, 5 * sigma * std::sqrt(15));
  EXPECT_NEAR(sum[4] / kCount, 3, 5 * sigma * std::sqrt(96));
  EXPECT_LT(largest, 6.67);
  EXPECT_GT(largest, 4);
}

}  // namespace
}  // namespace attend::test
