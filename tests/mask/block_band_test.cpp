// Tests that a block mask that equals a causal mask or window is recognised.
#include "mask/block_band.hpp"

#include <gtest/gtest.h>

#include <optional>
#include <random>
#include <string>

#include "attend/block_mask.hpp"

namespace attend::test {
namespace {

using core::BlockBand;

std::optional<BlockBand> band_of(const std::string& text, std::int64_t rows, std::int64_t keys) {
  const BlockMask mask = make_block_mask(MaskFunction(text.c_str()), {2, 2, rows, keys});
  return mask::band_of(*mask.state());
}

TEST(BlockBands, AreKnown) {
  struct Case {
    const char* text;
    std::int64_t rows, keys, left, right;
  };
  constexpr std::int64_t kOpen = BlockBand::kOpen;
  const Case kCases[] = {{"k <= q", 300, 300, kOpen, 0},
                         {"k <= q", 300, 77, kOpen, 0},
                         {"q >= k && q - k < 100", 300, 310, 99, 0},
                         {"abs(q - k) <= 64", 257, 300, 64, 64},
                         {"k < q", 200, 200, kOpen, -1},
                         {"k > q + 70", 200, 400, -71, kOpen},
                         {"true", 100, 100, kOpen, kOpen},
                         {"k <= q + 5 && h >= 0", 40, 50, kOpen, 5},
                         {"q - k == 3", 100, 90, 3, -3}};
  for (const Case& c : kCases) {
    const std::optional<BlockBand> band = band_of(c.text, c.rows, c.keys);
    ASSERT_TRUE(band.has_value()) << c.text;
    EXPECT_EQ(band->left, c.left) << c.text;
    EXPECT_EQ(band->right, c.right) << c.text;
  }
}

TEST(BlockBands, AreNothingElse) {
  for (const char* text :
       {"k <= q || k < 5", "k <= q && k != 70", "k <= q && q != 130", "q // 100 == k // 100", "k <= q && h == 1",
        "k <= q - h", "abs(q - k) <= 64 && abs(q - k) != 3", "k <= q || q == 298", "k // 64 <= q // 64", "false"}) {
    const std::optional<BlockBand> band = band_of(text, 300, 300);
    EXPECT_TRUE(!band.has_value() || std::string(text) == "false") << text;
  }
}

/// A mask that differs from a window in a single pair of row and key is not a window.
TEST(BlockBands, HaveNoHole) {
  std::mt19937_64 generator(5);
  for (int n = 0; n < 60; ++n) {
    const auto row = static_cast<int>(generator() % 200), key = static_cast<int>(generator() % 200);
    const bool is_seen = row - key < 50 && row - key >= -7;
    const std::string window = "q - k < 50 && k - q <= 7";
    const std::string pair = "q == " + std::to_string(row) + " && k == " + std::to_string(key);
    EXPECT_FALSE(band_of(is_seen ? window + " && !(" + pair + ")" : window + " || " + pair, 200, 200)) << pair;
    EXPECT_TRUE(band_of(window, 200, 200));
  }
}

}  // namespace
}  // namespace attend::test
