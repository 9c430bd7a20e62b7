#include "expr/print.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "expr/bounds.hpp"

namespace attend::expr {
namespace {

const char* type_of(Type type) {
  switch (type) {
    case Type::kBool:
      return "bool";
    case Type::kInt:
      return "int";
    case Type::kFloat:
      break;
  }
  return "Float";
}

/// Returns the name of the function in score_math.cuh for an operation. Returns null if the operation is printed as an
/// operator.
const char* function_of(Op op) {
  switch (op) {
    case Op::kNegate:
      return "negate";
    case Op::kAbs:
      return "absolute";
    case Op::kSign:
      return "sign";
    case Op::kFloor:
      return "floor";
    case Op::kCeil:
      return "ceil";
    case Op::kRound:
      return "nearbyint";
    case Op::kTrunc:
      return "trunc";
    case Op::kExp:
      return "exp";
    case Op::kExp2:
      return "exp2";
    case Op::kLog:
      return "log";
    case Op::kLog2:
      return "log2";
    case Op::kLog1p:
      return "log1p";
    case Op::kSqrt:
      return "sqrt";
    case Op::kRsqrt:
      return "rsqrt";
    case Op::kSin:
      return "sin";
    case Op::kCos:
      return "cos";
    case Op::kTan:
      return "tan";
    case Op::kTanh:
      return "tanh";
    case Op::kSigmoid:
      return "sigmoid";
    case Op::kErf:
      return "erf";
    case Op::kAdd:
      return "add";
    case Op::kSubtract:
      return "subtract";
    case Op::kMultiply:
      return "multiply";
    case Op::kFloorDivide:
      return "floor_divide";
    case Op::kFloorMod:
      return "floor_mod";
    case Op::kMin:
      return "least";
    case Op::kMax:
      return "greatest";
    case Op::kDivide:
      return "divide";
    case Op::kPow:
      return "pow";
    case Op::kShiftLeft:
      return "shift_left";
    case Op::kShiftRight:
      return "shift_right";
    case Op::kToInt:
      return "to_int";
    default:
      return nullptr;
  }
}

/// Returns the C++ operator for an operation that has no function in score_math.cuh.
const char* sign_of(Op op) {
  switch (op) {
    case Op::kAnd:
      return "&";
    case Op::kOr:
      return "|";
    case Op::kXor:
      return "^";
    case Op::kEqual:
      return "==";
    case Op::kNotEqual:
      return "!=";
    case Op::kLess:
      return "<";
    default:
      return "<=";  // for kLessEqual
  }
}

std::string name_of(Id id) {
  return fmt::format("v{}", id);
}

std::string constant(const Node& node) {
  if (node.type == Type::kBool) return node.value != 0 ? "true" : "false";
  if (node.type == Type::kInt) return fmt::format("static_cast<int>({}LL)", static_cast<std::int64_t>(node.value));
  if (std::isnan(node.value)) return "math::not_a_number<Float>()";
  if (std::isinf(node.value)) return node.value > 0 ? "math::infinity<Float>()" : "-math::infinity<Float>()";
  // The compiler would warn about a literal that float32 cannot represent.
  const double as_float = static_cast<double>(static_cast<float>(node.value));
  const bool fits =
      std::isfinite(as_float) && (node.value == 0 || std::abs(as_float) >= std::numeric_limits<float>::min());
  const std::string literal = fmt::format("{:a}", node.value);
  return (fits ? "Float(" : "math::rounded<Float>(") + literal + ")";
}

/// Returns bounds of an integer node, assuming that all variables except the score are in the range [least, most].
Interval bounds_of_int(const Graph& graph, Id id, double least, double most) {
  Ranges ranges;
  ranges.fill({least, most});
  const Interval anything = {-INFINITY, INFINITY, true};
  ranges[static_cast<std::size_t>(Variable::kScore)] = anything;
  return bounds_of(graph, id, ranges, [&](auto...) { return anything; });
}

/// Prints a load. Subscripts are clamped unless their bounds prove that they are within the tensor, so the printed code
/// never reads outside the tensor.
std::string load(const Graph& graph, Id id) {
  constexpr double kLeast = -0x1p31, kMost = 0x1p31 - 1;
  const Node& node = graph[id];
  const Capture& capture = graph.captures()[static_cast<std::size_t>(node.which)];
  std::vector<std::string> subscripts;
  for (std::size_t n = 0; n < capture.shape.size(); ++n) {
    const std::string name = name_of(node.args[n]);
    const Interval bounds = bounds_of_int(graph, node.args[n], kLeast, kMost);
    const bool is_within = bounds.low >= 0 && bounds.high < static_cast<double>(capture.shape[n]);
    subscripts.push_back(
        is_within ? name : fmt::format("math::within({}, captures.template extent<{}, {}>())", name, node.which, n));
  }
  return fmt::format("captures.template load<{}, {}>({})", node.which, id, fmt::join(subscripts, ", "));
}

constexpr double kMostExact = 0x1p24;     // all integers up to this are exact in float32
constexpr double kMostPart = 0x1p22 - 1;  // limit of the argument of small_part() in score_math.cuh

/// Returns whether the magnitude of an integer node is at most `most`, assuming that all indices and lengths are at
/// most 2^21.
bool is_within(const Graph& graph, Id id, double most) {
  const Interval bounds = bounds_of_int(graph, id, 0, 0x1p21);
  return bounds.low >= -most && bounds.high <= most;
}

bool is_variable(const Node& node, Variable which) {
  return node.op == Op::kVariable && static_cast<Variable>(node.which) == which;
}

struct Term {
  Id id;
  bool is_added;
};

/// Collects the terms of a sum. Stops after `most` terms, because a chain of doublings has exponentially many terms.
void add_terms(const Graph& graph, Id id, bool is_added, std::size_t most, std::vector<Term>& terms) {
  const Node& node = graph[id];
  if (terms.size() > most) return;
  if (node.op == Op::kAdd || node.op == Op::kSubtract) {
    add_terms(graph, node.args[0], is_added, most, terms);
    add_terms(graph, node.args[1], is_added == (node.op == Op::kAdd), most, terms);
  } else {
    terms.push_back({id, is_added});
  }
}

/// Prints a sum that contains q - k or k - q, other variables and constants. The terms that are the same for all scores
/// of a tile are added first. Returns an empty text for other sums. Also returns an empty text if there are so many
/// terms that float32 might round the sum.
std::string sum_with_distance(const Graph& graph, Id id) {
  constexpr std::size_t kMostTerms = 6;  // with at most this many terms of at most 2^21, the sum is exact in float32
  std::vector<Term> terms;
  add_terms(graph, id, true, kMostTerms, terms);
  const auto take = [&](Variable variable) {
    const auto at =
        std::ranges::find_if(terms, [&](const Term& term) { return is_variable(graph[term.id], variable); });
    const std::optional<bool> is_added = at == terms.end() ? std::nullopt : std::optional(at->is_added);
    if (at != terms.end()) terms.erase(at);
    return is_added;
  };
  if (terms.size() > kMostTerms) return {};
  const std::optional<bool> adds_row = take(Variable::kRow), adds_key = take(Variable::kKey);
  if (!adds_row || !adds_key || *adds_row == *adds_key) return {};
  const char* const sign = *adds_row ? "+" : "-";
  std::string sum = *adds_row ? "at.distance_base" : "-at.distance_base";
  for (const Term& term : terms) {
    const Node& node = graph[term.id];
    const bool is_constant = node.op == Op::kConstant && std::abs(node.value) <= 0x1p21;
    const bool is_uniform = node.op == Op::kVariable && !is_variable(node, Variable::kRow) &&
                            !is_variable(node, Variable::kKey) && !is_variable(node, Variable::kScore);
    if (!is_constant && !is_uniform) return {};
    sum = fmt::format(
        "({} {} {})", sum, term.is_added ? "+" : "-",
        is_constant ? fmt::format("Float({})", node.value) : fmt::format("static_cast<Float>({})", name_of(term.id)));
  }
  return fmt::format("({} {} at.distance_step)", sum, sign);
}

/// Prints an integer expression as float arithmetic. Sums, differences and absolute values are computed in float32 if
/// they are exact there. Other integers are computed as integers and converted. At most `parts_left` subexpressions are
/// printed as float arithmetic, to limit the length of the text.
std::string sum_of_floats(const Graph& graph, Id id, int& parts_left) {
  const Node& node = graph[id];
  if (--parts_left < 0) return fmt::format("math::to_float<Float>({})", name_of(id));
  if (node.op == Op::kAdd || node.op == Op::kSubtract) {
    if (std::string sum = sum_with_distance(graph, id); !sum.empty()) return sum;
  }
  const auto part = [&](std::size_t n) { return sum_of_floats(graph, node.args[n], parts_left); };
  const bool are_exact = std::all_of(node.args.begin(), node.args.begin() + node.num_args(), [&](Id arg) {
    return graph.type(arg) == Type::kInt && is_within(graph, arg, kMostExact);
  });
  if (are_exact) {
    switch (node.op) {
      case Op::kConstant:
        return fmt::format("Float({})", node.value);
      case Op::kVariable:
        if (static_cast<Variable>(node.which) == Variable::kRow) return "at.row_number";
        if (static_cast<Variable>(node.which) == Variable::kKey) return "at.key_number";
        return fmt::format("static_cast<Float>({})", name_of(id));  // the value is the same for all scores of a head
      case Op::kAbs:
        return fmt::format("math::absolute({})", part(0));
      case Op::kNegate:
        return fmt::format("(Float(0) - {})", part(0));
      case Op::kAdd:
        return fmt::format("({} + {})", part(0), part(1));
      case Op::kSubtract:
        return fmt::format("({} - {})", part(0), part(1));
      default:
        break;
    }
  }
  const bool is_part = is_within(graph, id, kMostPart);
  return fmt::format("math::{}<Float>({})", is_part ? "small_part" : "to_float", name_of(id));
}

std::string to_float(const Graph& graph, Id id) {
  if (graph.type(id) != Type::kInt) return fmt::format("static_cast<Float>({})", name_of(id));
  if (!is_within(graph, id, kMostExact)) return fmt::format("math::to_float<Float>({})", name_of(id));
  int parts_left = 64;
  return fmt::format("math::small_to_float<Float>({}, {})", name_of(id), sum_of_floats(graph, id, parts_left));
}

/// Returns whether the node is a constant whose value and reciprocal are normal float32 numbers.
bool is_divisor(const Node& node) {
  return node.op == Op::kConstant && std::isnormal(static_cast<float>(node.value)) &&
         std::isnormal(static_cast<float>(1 / node.value));
}

/// Prints a soft cap: tanh(x / d) or c * tanh(x / d), where c and d are constants. Returns an empty text for other
/// nodes.
std::string soft_cap(const Graph& graph, const Node& node) {
  constexpr double kTwoLog2E = 2.8853900817779268;
  const auto quotient_of_tanh = [&](const Node& tanh) -> std::string {
    if (tanh.op != Op::kTanh) return "";
    const Node& quotient = graph[tanh.args[0]];
    if (quotient.op != Op::kDivide || !is_divisor(graph[quotient.args[1]])) return "";
    return fmt::format("{}, {}, Float({:a})", name_of(quotient.args[0]), name_of(quotient.args[1]),
                       kTwoLog2E / graph[quotient.args[1]].value);
  };
  if (node.op == Op::kTanh) {
    const std::string quotient = quotient_of_tanh(node);
    return quotient.empty() ? "" : fmt::format("math::tanh_of_quotient({})", quotient);
  }
  if (node.op != Op::kMultiply || node.type != Type::kFloat) return "";
  for (std::size_t n = 0; n < 2; ++n) {
    const std::string quotient = quotient_of_tanh(graph[node.args[1 - n]]);
    if (graph.is_constant(node.args[n]) && !quotient.empty()) {
      return fmt::format("math::soft_cap({}, {})", name_of(node.args[n]), quotient);
    }
  }
  return "";
}

std::string operation(const Graph& graph, Id id) {
  const Node& node = graph[id];
  const auto arg = [&](std::size_t n) { return name_of(node.args[n]); };
  switch (node.op) {
    case Op::kConstant:
      return constant(node);
    case Op::kVariable:
      return fmt::format("at.{}", member_of(static_cast<Variable>(node.which)));
    case Op::kLoad:
      return load(graph, id);
    case Op::kNot:
      return (node.type == Type::kBool ? "!" : "~") + arg(0);
    case Op::kToFloat:
      return to_float(graph, node.args[0]);
    case Op::kSelect:
      return fmt::format("{} ? {} : {}", arg(0), arg(1), arg(2));
    case Op::kDivide:
      if (!is_divisor(graph[node.args[1]])) break;
      return fmt::format("math::divide_by({}, {}, Float({:a}))", arg(0), arg(1), 1 / graph[node.args[1]].value);
    case Op::kTanh:
    case Op::kMultiply:
      if (const std::string text = soft_cap(graph, node); !text.empty()) return text;
      break;
    default:
      break;
  }
  const char* const function = function_of(node.op);
  if (function == nullptr) return fmt::format("{} {} {}", arg(0), sign_of(node.op), arg(1));
  return node.num_args() == 1 ? fmt::format("math::{}({})", function, arg(0))
                              : fmt::format("math::{}({}, {})", function, arg(0), arg(1));
}

}  // namespace

const char* member_of(Variable variable) {
  switch (variable) {
    case Variable::kScore:
      return "score";
    case Variable::kBatch:
      return "batch";
    case Variable::kHead:
      return "head";
    case Variable::kRow:
      return "row";
    case Variable::kKey:
      return "key";
    case Variable::kRowsLength:
      return "rows_length";
    case Variable::kKeysLength:
      break;
  }
  return "keys_length";
}

std::string print_struct(const Graph& graph, std::string_view name, std::span<const Id> nodes) {
  std::string results;
  for (std::size_t n = 0; n < nodes.size(); ++n) results += fmt::format(", {}& r{}", type_of(graph.type(nodes[n])), n);
  std::string text = fmt::format(
      "struct {} {{\n  template <class Float, class Captures>\n  static ATTEND_HOST_DEVICE void evaluate(const "
      "attend::ScorePoint<Float>& at, const Captures& captures{}) {{\n    namespace math = attend::score_math;\n",
      name, results);
  const std::vector<bool> needed = graph.needed_by(nodes);
  for (std::size_t n = 0; n < needed.size(); ++n) {
    if (!needed[n]) continue;
    const auto id = static_cast<Id>(n);
    text += fmt::format("    const {} {} = {};\n", type_of(graph.type(id)), name_of(id), operation(graph, id));
  }
  for (std::size_t n = 0; n < nodes.size(); ++n) text += fmt::format("    r{} = {};\n", n, name_of(nodes[n]));
  return text + "  }\n};\n";
}

}  // namespace attend::expr
