#include "support/covering_array.hpp"

#include <gtest/gtest.h>

#include <set>

namespace attend::test {
namespace {

const Compatible kAll = [](int, int, int, int) { return true; };

TEST(CoveringArray, HoldsEveryPair) {
  const std::vector<int> num_values = {5, 4, 3, 3, 2, 2, 2, 7};
  const std::vector<Choice> cases = covering_array(num_values, kAll, 1);
  EXPECT_GE(cases.size(), 5U * 7U);  // number of pairs of the two largest factors
  EXPECT_LE(cases.size(), 45U);
  // Counts the covered pairs without calling uncovered_pairs(), which is under test.
  for (std::size_t f = 0; f < num_values.size(); ++f) {
    for (std::size_t g = f + 1; g < num_values.size(); ++g) {
      std::set<std::pair<int, int>> seen;
      for (const Choice& c : cases) seen.insert({c[f], c[g]});
      EXPECT_EQ(seen.size(), static_cast<std::size_t>(num_values[f] * num_values[g]));
    }
  }
  EXPECT_EQ(uncovered_pairs(num_values, kAll, cases), 0);
}

TEST(CoveringArray, KeepsIncompatiblePairsApart) {
  const std::vector<int> num_values = {3, 3, 4};
  const Compatible never_both_first = [](int f, int a, int g, int b) {
    return !(f == 0 && g == 1 && a == 0 && b == 0);
  };
  const std::vector<Choice> cases = covering_array(num_values, never_both_first, 1);
  for (const Choice& c : cases) EXPECT_FALSE(c[0] == 0 && c[1] == 0);
  EXPECT_EQ(uncovered_pairs(num_values, never_both_first, cases), 0);
}

TEST(CoveringArray, CountsWhatIsMissing) {
  EXPECT_EQ(uncovered_pairs({2, 2}, kAll, {{0, 0}, {1, 1}}), 2);
}

}  // namespace
}  // namespace attend::test
