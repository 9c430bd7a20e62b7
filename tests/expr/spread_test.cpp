// Tests spread_of(), which finds out whether a function depends only on the distance q - k, only on the row, or only on
// the key.
#include "expr/spread.hpp"

#include <gtest/gtest.h>

#include <array>
#include <random>
#include <string>
#include <vector>

#include "expr/evaluate.hpp"
#include "expr/parse.hpp"
#include "expr/random_text.hpp"

namespace attend::test {
namespace {

using expr::Spread;

Spread spread_of(const std::string& text, expr::Type type) {
  const expr::Function f = expr::parse("text", text, some_captures(), type);
  return expr::spread_of(f.graph, std::array{f.result});
}

TEST(Spread, IsKnown) {
  const std::pair<const char*, Spread> kInts[] = {
      {"h", Spread::kUniform},
      {"3 * b + q_len", Spread::kUniform},
      {"q", Spread::kRow},
      {"q * q + h", Spread::kRow},
      {"k // 2", Spread::kKey},
      {"doc[k]", Spread::kKey},
      {"q - k", Spread::kDistance},
      {"clamp(q - k, -128, 127) + 128", Spread::kDistance},
      {"abs(q + k_len - q_len - k)", Spread::kDistance},
      {"2 * k - 2 * q", Spread::kDistance},
      {"-(k - q) + doc[q - k]", Spread::kDistance},
      {"max(q - k, 0) < 16 ? q - k : min(8 + int(log(max(q - k, 1) / 8) * 4), 31)", Spread::kDistance},
      {"q - k + q", Spread::kAny},
      {"q - k + k", Spread::kRow},
      {"q + k", Spread::kAny},
      {"(q - k) * q", Spread::kAny},
      {"doc[q] - doc[k]", Spread::kAny},
      {"int(score)", Spread::kAny}};
  for (const auto& [text, spread] : kInts) EXPECT_EQ(spread_of(text, expr::Type::kInt), spread) << text;
  // In the last text, float32 rounds the sum. The difference between the sum and k therefore does not depend on q - k
  // alone.
  const std::pair<const char*, Spread> kFloats[] = {{"float(q) - float(k)", Spread::kDistance},
                                                    {"float(q - k) / 8", Spread::kDistance},
                                                    {"float(q) + 0.1 - float(k)", Spread::kAny}};
  for (const auto& [text, spread] : kFloats) EXPECT_EQ(spread_of(text, expr::Type::kFloat), spread) << text;
  const expr::Function f = expr::parse("text", "q - k", some_captures(), expr::Type::kInt);
  EXPECT_EQ(expr::spread_of(f.graph, std::span<const expr::Id>()), Spread::kUniform);
}

/// According to spread_of(), some variables do not affect a random function. If only these variables change, the
/// function must keep its value.
TEST(Spread, IsRight) {
  constexpr int kFunctions = 4000 / ATTEND_TEST_STRIDE, kPoints = 8;
  std::mt19937_64 generator(7);
  int counts[5] = {};
  for (int n = 0; n < kFunctions; ++n) {
    RandomText random(static_cast<std::uint64_t>(n), true);
    const std::string text = random.of_int(n % 3);
    const expr::Function f = expr::parse("text", text, some_captures(), expr::Type::kInt);
    const std::vector<expr::Id> nodes = {f.result};
    const Spread spread = expr::spread_of(f.graph, nodes);
    ++counts[static_cast<int>(spread)];
    if (spread == Spread::kAny) continue;
    expr::Evaluator evaluator(f.graph, nodes, element_of_capture);
    for (int at = 0; at < kPoints; ++at) {
      expr::Point point = random_point(generator);
      const double value = evaluator.at(point)[0];
      const auto step = static_cast<double>(generator() % 9);
      const bool moves_row = spread != Spread::kRow, moves_key = spread != Spread::kKey;
      if (moves_row) point[static_cast<std::size_t>(expr::Variable::kRow)] += step;
      if (moves_key) point[static_cast<std::size_t>(expr::Variable::kKey)] += step;
      point[static_cast<std::size_t>(expr::Variable::kScore)] += 1;
      EXPECT_EQ(evaluator.at(point)[0], value) << text;
    }
  }
  for (const int count : counts) EXPECT_GT(count, kFunctions / 100);
}

}  // namespace
}  // namespace attend::test
