// Parses score and mask functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "expr/graph.hpp"

namespace attend::expr {

struct Function {
  Graph graph;
  Id result = kNone;
};

/// Parses the function that `text` describes. The language is that of C expressions with extensions:
///
///   text        = { "let" name "=" expression ";" } expression
///   operators   = ?:  ||  &&  |  ^  &  == !=  < <= > >=  << >>  + -  * / // %  unary - ! ~, precedence as in C
///   subscripts  = name[i][j] or name[i, j]
///   names       = score b h q k q_len k_len, captures, names defined by `let`; pi, inf, true, false
///   functions   = abs sign floor ceil round trunc exp exp2 log log2 log1p sqrt rsqrt sin cos tan tanh sigmoid erf relu
///                 gelu silu min max pow clamp(x, low, high) where(condition, a, b) int float
///
/// `/` gives a float. `//` and `%` round the quotient down. If the operands of an operator have different types, one of
/// them is converted. Next to an integer, a bool becomes 0 or 1. Next to a float, an integer or bool becomes a float.
/// If an operator requires a bool, any nonzero value means true. `a < b < c` and `a == b == c` are refused.
///
/// `result` is kFloat for a score function. It is kBool for a mask function, which cannot use `score`. Throws Error
/// (kInvalidArgument), whose one-line text begins with `argument` and names the column, counted from 1.
[[nodiscard]] Function parse(std::string_view argument, std::string_view text, std::vector<Capture> captures,
                             Type result);

}  // namespace attend::expr
