// Tests far_loads_of(), which finds loads that read the same element for all keys far from the diagonal.
#include "expr/far_loads.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "expr/evaluate.hpp"
#include "expr/parse.hpp"
#include "expr/random_text.hpp"

namespace attend::test {
namespace {

using expr::FarEnds;
using expr::FarLoads;

TEST(FarLoads, AreKnown) {
  struct Case {
    const char* text;
    std::size_t loads;
    std::int64_t from, until;
  };
  constexpr std::int64_t kNo = FarEnds::kNowhere;
  const Case kCases[] = {
      {"score + table[h][clamp(q - k, -8, 7) + 8]", 1, 7, -8},
      // The extent of the tensor is ignored, although it clamps the subscript.
      {"score + table[h][q - k + 8]", 0, kNo, -kNo},
      {"score + table[h][max(k - q, -5)]", 1, 5, -kNo},
      {"score - bias[h] * abs(q - k)", 0, kNo, -kNo},
      {"score + table[h][q]", 0, kNo, -kNo},
      {"score + table[h][min(q, 3)]", 0, kNo, -kNo},
      {"score + table[h][(q - k) & 7]", 0, kNo, -kNo},
      {"score + bias[min(abs(q - k), 5)] + bias[clamp(q - k, -7, 0) + 7]", 2, 5, -7},
      {"score + table[h][q - k < 4 ? max(q - k, 0) : min(4 + int(log(float(max(q - k, 1)) / 4) * 3), 15)]", 1, 157, 0},
      {"score + cap", 0, kNo, -kNo},
      // Only the load of doc is found: no bound shows that the subscript of bias is constant too.
      {"score + bias[doc[clamp(q - k, 0, 9)]]", 1, 9, 0},
      {"score + bias[q > 100 ? clamp(q - k, 0, 4) : 0]", 0, kNo, -kNo}};
  for (const Case& c : kCases) {
    const expr::Function f = expr::parse("text", c.text, some_captures(), expr::Type::kFloat);
    const FarLoads far = expr::far_loads_of(f.graph, f.result);
    EXPECT_EQ(far.loads.size(), c.loads) << c.text;
    EXPECT_EQ(far.ends.from, c.from) << c.text;
    EXPECT_EQ(far.ends.until, c.until) << c.text;
  }
}

/// Returns a function with a load whose subscript depends on q - k. In most of these texts, but not in all, the
/// subscript is constant far from the diagonal.
std::string random_table(int n, std::mt19937_64& generator) {
  const auto number = [&](int most) { return std::to_string(static_cast<int>(generator() % (2 * most + 1)) - most); };
  const std::string distance = n % 2 == 0 ? "(q - k)" : "abs(k - q)";
  switch (n % 5) {
    case 0:
      return "score + bias[clamp(" + number(3) + " * " + distance + " + h % 3, " + number(9) + ", " + number(20) + ")]";
    case 1:
      return "score + bias[" + distance + " < " + number(30) + " ? max(" + distance + ", " + number(9) + ") : min(" +
             distance + " // 3, " + number(40) + ")]";
    case 2:
      return "score + bias[min(4 + int(log(float(max(" + distance + ", 1)) / 4) * 3), 12 + " + number(8) + ")]";
    case 3:
      return "score + table[min(" + distance + ", 3)][max(" + number(40) + " - " + distance + ", b % 2)]";
    default:
      RandomText random(static_cast<std::uint64_t>(n), true);
      return "score + bias[clamp(" + random.of_int(n % 3) + " + 3 * (q - k), -3, 11)]";
  }
}

/// If far_loads_of() reports that the subscript of a random load is constant, it must be constant.
TEST(FarLoads, AreOneElement) {
  constexpr int kFunctions = 4000 / ATTEND_TEST_STRIDE, kPoints = 24;
  std::mt19937_64 generator(11);
  int found = 0;
  for (int n = 0; n < kFunctions; ++n) {
    const std::string text = random_table(n, generator);
    const expr::Function f = expr::parse("text", text, some_captures(), expr::Type::kFloat);
    const FarLoads far = expr::far_loads_of(f.graph, f.result);
    for (const expr::Id load : far.loads) {
      const std::vector<expr::Id> subscripts(f.graph[load].args.begin(),
                                             f.graph[load].args.begin() + f.graph[load].num_args());
      const std::vector<std::int64_t>& shape = f.graph.captures()[static_cast<std::size_t>(f.graph[load].which)].shape;
      expr::Evaluator evaluator(f.graph, subscripts, element_of_capture);
      for (const bool is_behind : {false, true}) {
        const std::int64_t end = is_behind ? -far.ends.until : far.ends.from;
        if (end == FarEnds::kNowhere) continue;
        ++found;
        expr::Point point = random_point(generator);
        std::vector<double> first;
        for (int at = 0; at < kPoints; ++at) {
          auto& row = point[static_cast<std::size_t>(expr::Variable::kRow)];
          auto& key = point[static_cast<std::size_t>(expr::Variable::kKey)];
          const auto distance = static_cast<double>(end + static_cast<std::int64_t>(generator() % (at + 1)));
          (is_behind ? row : key) = static_cast<double>(generator() % 1000);
          (is_behind ? key : row) = (is_behind ? row : key) + distance;
          std::vector<double> elements;
          for (std::size_t d = 0; d < subscripts.size(); ++d) {
            elements.push_back(std::clamp(evaluator.at(point)[d], 0.0, static_cast<double>(shape[d] - 1)));
          }
          if (at == 0) first = elements;
          EXPECT_EQ(elements, first) << text;
        }
      }
    }
  }
  EXPECT_GT(found, kFunctions / 2);
}

}  // namespace
}  // namespace attend::test
