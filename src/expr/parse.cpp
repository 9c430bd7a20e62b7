#include "expr/parse.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <numbers>
#include <optional>
#include <utility>

#include "attend/error.hpp"
#include "expr/tokens.hpp"

namespace attend::expr {
namespace {

constexpr int kMostDepth = 200;  // limit for nested brackets and operators, because the parser is recursive

struct BinaryOperator {
  std::string_view text;
  int tightness;
  Op op;
};
// Logical operators have the lowest precedence. The other operators have the same precedence as in C.
constexpr BinaryOperator kBinaryOperators[] = {
    {"||", 1, Op::kOr},         {"&&", 2, Op::kAnd},          {"|", 3, Op::kOr},         {"^", 4, Op::kXor},
    {"&", 5, Op::kAnd},         {"==", 6, Op::kEqual},        {"!=", 6, Op::kNotEqual},  {"<", 7, Op::kLess},
    {"<=", 7, Op::kLessEqual},  {">", 7, Op::kLess},          {">=", 7, Op::kLessEqual}, {"<<", 8, Op::kShiftLeft},
    {">>", 8, Op::kShiftRight}, {"+", 9, Op::kAdd},           {"-", 9, Op::kSubtract},   {"*", 10, Op::kMultiply},
    {"/", 10, Op::kDivide},     {"//", 10, Op::kFloorDivide}, {"%", 10, Op::kFloorMod}};

constexpr Op kFloatFunctions[] = {Op::kFloor, Op::kCeil, Op::kRound, Op::kTrunc,   Op::kExp,   Op::kExp2,
                                  Op::kLog,   Op::kLog2, Op::kLog1p, Op::kSqrt,    Op::kRsqrt, Op::kSin,
                                  Op::kCos,   Op::kTan,  Op::kTanh,  Op::kSigmoid, Op::kErf};

constexpr std::string_view kOtherFunctions[] = {"abs",   "sign", "min",  "max",  "pow", "clamp",
                                                "where", "relu", "gelu", "silu", "int", "float"};

constexpr std::string_view kConstants[] = {"pi", "inf", "true", "false"};

const BinaryOperator* binary_operator(std::string_view text) {
  const auto* found = std::find_if(std::begin(kBinaryOperators), std::end(kBinaryOperators),
                                   [&](const BinaryOperator& o) { return o.text == text; });
  return found == std::end(kBinaryOperators) ? nullptr : found;
}

std::optional<Op> float_function(std::string_view name) {
  for (const Op op : kFloatFunctions) {
    if (op_name(op) == name) return op;
  }
  return std::nullopt;
}

bool is_function(std::string_view name) {
  return float_function(name) ||
         std::find(std::begin(kOtherFunctions), std::end(kOtherFunctions), name) != std::end(kOtherFunctions);
}

class Parser {
 public:
  Parser(std::string_view argument, std::string_view text, std::vector<Capture> captures, Type result)
      : argument_(argument), tokens_(argument, text), graph_(std::move(captures)), is_mask_(result == Type::kBool) {
    for (std::size_t v = 0; v < kVariables; ++v) {
      const auto variable = static_cast<Variable>(v);
      if (is_mask_ && variable == Variable::kScore) continue;
      names_[variable_name(variable)] = graph_.variable(variable);
    }
    for (std::size_t n = 0; n < graph_.captures().size(); ++n) check_capture(n);
  }

  /// Returns the column of the next token.
  [[nodiscard]] std::size_t column() const { return tokens_.next().column; }

  Function function() {
    while (tokens_.take_if("let")) {
      const Token name = tokens_.take();
      check_new_name(name);
      tokens_.want("=");
      names_[std::string(name.text)] = expression(0);
      tokens_.want(";");
    }
    const Id value = expression(0);
    if (tokens_.next().kind != Token::Kind::kEnd) tokens_.refuse_next("an operator or the end");
    const Id result = is_mask_ ? graph_.as_bool(value) : graph_.as_float(value);
    return {std::move(graph_), result};
  }

 private:
  struct Deeper {
    explicit Deeper(Parser& parser) : parser_(parser) {
      if (++parser_.depth_ > kMostDepth) {
        refuse(parser_.argument_, parser_.tokens_.next().column, "brackets and operators nested too deeply");
      }
    }
    ~Deeper() { --parser_.depth_; }
    Parser& parser_;
  };

  // ------------------------------------------------------------------------------------------------------ names

  void check_capture(std::size_t n) {
    const Capture& capture = graph_.captures()[n];
    const auto refuse_capture = [&](const std::string& message) {
      throw Error(ErrorCode::kInvalidArgument,
                  std::string(argument_) + ": capture " + printed(capture.name) + ": " + message);
    };
    if (!is_name(capture.name)) refuse_capture("not a name");
    if (is_taken(capture.name)) refuse_capture("the name is already in use");
    if (capture.shape.size() > kMostSubscripts) refuse_capture("more than 4 extents");
    for (const std::int64_t extent : capture.shape) {
      if (extent < 1 || extent > std::numeric_limits<std::int32_t>::max()) {
        refuse_capture("extent " + std::to_string(extent) + ", allowed 1 to 2147483647");
      }
    }
    captures_[capture.name] = static_cast<std::int32_t>(n);
  }

  [[nodiscard]] bool is_taken(std::string_view name) const {
    return name == "let" || name == "score" || is_function(name) || names_.contains(name) || captures_.contains(name) ||
           std::find(std::begin(kConstants), std::end(kConstants), name) != std::end(kConstants);
  }

  void check_new_name(const Token& name) const {
    if (name.kind != Token::Kind::kName) refuse(argument_, name.column, "expected a name after 'let'");
    if (is_taken(name.text)) {
      refuse(argument_, name.column, printed(name.text) + " is already in use");
    }
  }

  [[nodiscard]] std::string known_names() const {
    std::string list;
    for (const auto& [name, id] : names_) list += (list.empty() ? "" : ", ") + name;
    for (const auto& [name, number] : captures_) list += ", " + name;
    constexpr std::size_t kMost = 200;
    return list.size() <= kMost ? list : list.substr(0, kMost) + "...";
  }

  // -------------------------------------------------------------------------------------------------- operators

  /// Parses an expression whose binary operators have a higher precedence than `tightness`. If `tightness` is 0, the
  /// operator ?: is also allowed.
  Id expression(int tightness) {  // NOLINT(misc-no-recursion): Deeper bounds it
    const Deeper deeper(*this);
    Id left = unary();
    for (int compared = 0;;) {
      const BinaryOperator* found = binary_operator(tokens_.next().text);
      if (found == nullptr || found->tightness <= tightness) break;
      const Token sign = tokens_.take();
      const bool compares = found->tightness == 6 || found->tightness == 7;
      if (compares && compared == found->tightness) {
        refuse(argument_, sign.column, "a comparison of a comparison: write a < b && b < c");
      }
      compared = found->tightness;
      left = binary(sign, *found, left, expression(found->tightness));
    }
    if (tightness > 0 || !tokens_.take_if("?")) return left;
    const Id yes = expression(0);
    tokens_.want(":");
    const Id no = expression(0);
    return select(left, yes, no);
  }

  Id binary(const Token& sign, const BinaryOperator& found, Id a, Id b) {
    const bool swaps = found.text == ">" || found.text == ">=";
    if (found.tightness <= 2) return graph_.make(found.op, graph_.as_bool(a), graph_.as_bool(b));
    const bool is_bitwise = found.tightness <= 5 || found.tightness == 8;
    if (is_bitwise && (is_float(a) || is_float(b))) {
      refuse(argument_, sign.column, "'" + std::string(sign.text) + "' of a float, allowed: integers, bools");
    }
    if (found.op == Op::kDivide) return graph_.make(Op::kDivide, graph_.as_float(a), graph_.as_float(b));
    const bool keeps_bools = found.tightness <= 6;
    unify(a, b, keeps_bools);
    return swaps ? graph_.make(found.op, b, a) : graph_.make(found.op, a, b);
  }

  Id unary() {  // NOLINT(misc-no-recursion)
    const Deeper deeper(*this);
    const Token sign = tokens_.next();
    if (tokens_.take_if("-")) {
      const Id value = unary();
      return graph_.make(Op::kNegate, is_float(value) ? value : graph_.as_int(value));
    }
    if (tokens_.take_if("!")) return graph_.make(Op::kNot, graph_.as_bool(unary()));
    if (tokens_.take_if("~")) {
      const Id value = unary();
      if (is_float(value)) refuse(argument_, sign.column, "'~' of a float, allowed: an integer");
      return graph_.make(Op::kNot, graph_.as_int(value));
    }
    if (tokens_.take_if("+")) return unary();
    return primary();
  }

  Id primary() {  // NOLINT(misc-no-recursion)
    if (tokens_.take_if("(")) {
      const Id value = expression(0);
      tokens_.want(")");
      return value;
    }
    const Token token = tokens_.next();
    switch (token.kind) {
      case Token::Kind::kInt:
        tokens_.take();
        return graph_.constant(Type::kInt, token.value);
      case Token::Kind::kFloat:
        tokens_.take();
        return graph_.number(token.value);
      case Token::Kind::kName:
        tokens_.take();
        return named(token);
      default:
        tokens_.refuse_next("a number, a name or '('");
    }
  }

  Id named(const Token& name) {  // NOLINT(misc-no-recursion)
    if (const auto found = names_.find(name.text); found != names_.end()) return found->second;
    if (const auto found = captures_.find(name.text); found != captures_.end()) return load(name, found->second);
    if (is_function(name.text)) return call(name);
    if (name.text == "pi") return graph_.number(std::numbers::pi);
    if (name.text == "inf") return graph_.number(std::numeric_limits<double>::infinity());
    if (name.text == "true" || name.text == "false") return graph_.constant(Type::kBool, name.text == "true");
    if (name.text == "score") refuse(argument_, name.column, "'score' is not defined in a mask");
    refuse(argument_, name.column, printed(name.text) + " is not a name here, known: " + known_names());
  }

  Id load(const Token& name, std::int32_t capture) {  // NOLINT(misc-no-recursion)
    const std::size_t rank = graph_.captures()[static_cast<std::size_t>(capture)].shape.size();
    std::vector<Id> subscripts;
    while (tokens_.is("[")) {
      do {
        const Token sign = tokens_.take();
        const Id subscript = expression(0);
        if (is_float(subscript)) refuse(argument_, sign.column, "a subscript that is a float: write int(...)");
        subscripts.push_back(graph_.as_int(subscript));
      } while (tokens_.is(","));
      tokens_.want("]");
    }
    if (subscripts.size() != rank) {
      refuse(argument_, name.column,
             "'" + std::string(name.text) + "' with " + std::to_string(subscripts.size()) +
                 " subscripts, allowed: " + std::to_string(rank));
    }
    return graph_.load(capture, subscripts);
  }

  // -------------------------------------------------------------------------------------------------- functions

  std::vector<Id> arguments() {  // NOLINT(misc-no-recursion)
    std::vector<Id> values;
    tokens_.want("(");
    if (tokens_.take_if(")")) return values;
    do {
      values.push_back(expression(0));
    } while (tokens_.take_if(","));
    tokens_.want(")");
    return values;
  }

  Id call(const Token& name) {  // NOLINT(misc-no-recursion)
    const std::vector<Id> args = arguments();
    const auto want = [&](std::size_t count) {
      if (args.size() == count) return;
      refuse(argument_, name.column,
             "'" + std::string(name.text) + "' with " + std::to_string(args.size()) +
                 " arguments, allowed: " + std::to_string(count));
    };
    if (name.text == "min" || name.text == "max") {
      if (args.size() < 2) {
        refuse(argument_, name.column, printed(name.text) + " with fewer than 2 arguments");
      }
      Id result = args[0];
      for (std::size_t n = 1; n < args.size(); ++n) {
        result = of_two(name.text == "min" ? Op::kMin : Op::kMax, result, args[n]);
      }
      return result;
    }
    if (name.text == "clamp") return want(3), of_two(Op::kMin, of_two(Op::kMax, args[0], args[1]), args[2]);
    if (name.text == "where") return want(3), select(args[0], args[1], args[2]);
    if (name.text == "pow") return want(2), graph_.make(Op::kPow, graph_.as_float(args[0]), graph_.as_float(args[1]));
    want(1);
    const Id value = args[0];
    if (name.text == "int") return is_float(value) ? graph_.make(Op::kToInt, value) : graph_.as_int(value);
    if (name.text == "float") return graph_.as_float(value);
    if (name.text == "relu") return of_two(Op::kMax, value, graph_.constant(Type::kInt, 0));
    if (name.text == "silu") return of_two(Op::kMultiply, value, graph_.make(Op::kSigmoid, graph_.as_float(value)));
    if (name.text == "gelu") return gelu(graph_.as_float(value));
    if (const auto op = float_function(name.text)) return graph_.make(*op, graph_.as_float(value));
    return graph_.make(name.text == "abs" ? Op::kAbs : Op::kSign, is_float(value) ? value : graph_.as_int(value));
  }

  /// Returns gelu(x) = x Phi(x). Source: Hendrycks & Gimpel, Gaussian error linear units (2016).
  Id gelu(Id x) {
    const Id erf = graph_.make(Op::kErf, graph_.make(Op::kMultiply, x, graph_.number(std::numbers::sqrt2 / 2)));
    const Id phi = graph_.make(Op::kMultiply, graph_.number(0.5), graph_.make(Op::kAdd, erf, graph_.number(1)));
    return graph_.make(Op::kMultiply, x, phi);
  }

  // ------------------------------------------------------------------------------------------------------ types

  [[nodiscard]] bool is_float(Id id) const { return graph_.type(id) == Type::kFloat; }

  void unify(Id& a, Id& b, bool keeps_bools) {
    if (is_float(a) || is_float(b)) {
      a = graph_.as_float(a), b = graph_.as_float(b);
    } else if (!keeps_bools || graph_.type(a) != graph_.type(b)) {
      a = graph_.as_int(a), b = graph_.as_int(b);
    }
  }

  Id of_two(Op op, Id a, Id b) {
    unify(a, b, /*keeps_bools=*/false);
    return graph_.make(op, a, b);
  }

  Id select(Id condition, Id a, Id b) {
    unify(a, b, /*keeps_bools=*/true);
    return graph_.make(Op::kSelect, graph_.as_bool(condition), a, b);
  }

  std::string_view argument_;
  Tokens tokens_;
  Graph graph_;
  bool is_mask_;
  int depth_ = 0;
  std::map<std::string, Id, std::less<>> names_;
  std::map<std::string, std::int32_t, std::less<>> captures_;
};

}  // namespace

Function parse(std::string_view argument, std::string_view text, std::vector<Capture> captures, Type result) {
  Parser parser(argument, text, std::move(captures), result);
  try {
    return parser.function();
  } catch (const GraphIsFull& full) {
    refuse(argument, parser.column(), full.what());
  }
}

}  // namespace attend::expr
