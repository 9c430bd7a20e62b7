#include "expr/random_text.hpp"

#include <array>
#include <cmath>

namespace attend::test {

std::vector<expr::Capture> some_captures() {
  using expr::Type;
  return {{"table", Type::kFloat, {4, 16}},
          {"bias", Type::kFloat, {8}},
          {"cap", Type::kFloat, {}},
          {"doc", Type::kInt, {32}},
          {"flags", Type::kBool, {5, 3, 2, 2}}};
}

double element_of_capture(std::int32_t capture, std::span<const std::int64_t> subscripts) {
  std::uint64_t hash = static_cast<std::uint64_t>(capture) + 17;
  for (const std::int64_t at : subscripts) hash = (hash ^ static_cast<std::uint64_t>(at)) * 0x9e3779b97f4a7c15U;
  hash ^= hash >> 31;
  if (capture == 3) return static_cast<double>(subscripts[0] / 7);  // document of a token; each document has 7 tokens
  if (capture == 4) return static_cast<double>(hash & 1);
  return static_cast<double>(hash % 2049) / 512 - 2;  // float32 can represent this number
}

expr::Point random_point(std::mt19937_64& generator) {
  std::uniform_real_distribution<double> score(-4, 4);
  const auto below = [&](int count) { return static_cast<double>(generator() % static_cast<unsigned>(count)); };
  const double drawn = score(generator);
  return {drawn, below(3), below(8), below(40), below(40), 40, 40};
}

std::string RandomText::of_float(int depth) {
  constexpr std::array kOfOne = {"exp",  "exp2", "log", "log2",    "log1p", "sqrt", "rsqrt", "sin",  "cos",   "tan",
                                 "tanh", "erf",  "abs", "sigmoid", "relu",  "sign", "floor", "ceil", "round", "trunc"};
  constexpr std::array kOfTwo = {"+", "-", "*", "/", "+", "*", "%", "//"};
  if (depth == 0) {
    switch (draw(6)) {
      case 0:
        return "cap";
      case 1:
        return "table[" + of_int(0) + "][" + of_int(0) + "]";
      case 2:
        return "bias[" + of_int(0) + "]";
      case 3:
        return std::to_string(draw(50) / 10.0);
      default:
        return is_mask_ ? "float(q - k)" : "score";
    }
  }
  switch (draw(8)) {
    case 0:
      return std::string(kOfOne[static_cast<std::size_t>(draw(kOfOne.size()))]) + "(" + of_float(depth - 1) + ")";
    case 1:
      return "(" + of_bool(depth - 1) + " ? " + of_float(depth - 1) + " : " + of_float(depth - 1) + ")";
    case 2:
      return std::string(draw(2) == 0 ? "min(" : "max(") + of_float(depth - 1) + ", " + of_float(depth - 1) + ")";
    case 3:
      return draw(3) == 0 ? "-" + of_float(depth - 1) : of_int(depth - 1) + " * " + of_float(depth - 1);
    case 4:
      return "clamp(" + of_float(depth - 1) + ", -1.5, " + of_float(0) + ")";
    case 5:
      return "pow(" + of_float(depth - 1) + ", " + (draw(2) == 0 ? "2" : of_float(0)) + ")";
    default:
      return "(" + of_float(depth - 1) + " " + kOfTwo[static_cast<std::size_t>(draw(kOfTwo.size()))] + " " +
             of_float(depth - 1) + ")";
  }
}

std::string RandomText::of_int(int depth) {
  constexpr std::array kOfTwo = {"+", "-", "*", "//", "%", "&", "|", "^", "<<", ">>", "-", "//"};
  if (depth == 0) {
    constexpr std::array kLeaves = {"q", "k", "h", "b", "q - k", "q_len", "k_len", "doc[q]", "doc[k]"};
    if (draw(4) == 0) return std::to_string(draw(40));
    return std::string("(") + kLeaves[static_cast<std::size_t>(draw(kLeaves.size()))] + ")";
  }
  switch (draw(7)) {
    case 0:
      return std::string(draw(2) == 0 ? "min(" : "max(") + of_int(depth - 1) + ", " + of_int(depth - 1) + ")";
    case 1:
      return "(" + of_bool(depth - 1) + " ? " + of_int(depth - 1) + " : " + of_int(depth - 1) + ")";
    case 2:
      return std::string(draw(2) == 0 ? "abs(" : "sign(") + of_int(depth - 1) + ")";
    case 3:
      return (draw(2) == 0 ? "-" : "~") + of_int(depth - 1);
    case 4:
      return "int(" + of_float(depth - 1) + ")";
    default:
      return "(" + of_int(depth - 1) + " " + kOfTwo[static_cast<std::size_t>(draw(kOfTwo.size()))] + " " +
             of_int(depth - 1) + ")";
  }
}

std::string RandomText::of_bool(int depth) {
  constexpr std::array kCompares = {"<", "<=", ">", ">=", "==", "!="};
  const std::string compares = std::string(" ") + kCompares[static_cast<std::size_t>(draw(kCompares.size()))] + " ";
  if (depth == 0) {
    if (draw(5) == 0) return "flags[b][h][" + of_int(0) + ", k]";
    return "(" + of_int(0) + compares + of_int(0) + ")";
  }
  switch (draw(6)) {
    case 0:
      return "!" + of_bool(depth - 1);
    case 1:
      return "(" + of_float(depth - 1) + compares + of_float(depth - 1) + ")";
    case 2:
      return "(" + of_bool(depth - 1) + (draw(2) == 0 ? " && " : " || ") + of_bool(depth - 1) + ")";
    case 3:
      return "(" + of_bool(depth - 1) + (draw(2) == 0 ? " ^ " : " == ") + of_bool(depth - 1) + ")";
    default:
      return "(" + of_int(depth - 1) + compares + of_int(depth - 1) + ")";
  }
}

}  // namespace attend::test
