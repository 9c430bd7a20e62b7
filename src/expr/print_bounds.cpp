#include "expr/print_bounds.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "expr/bounds.hpp"
#include "expr/print.hpp"

namespace attend::expr {
namespace {

const char* type_of(Type type) {
  switch (type) {
    case Type::kBool:
      return "Bools";
    case Type::kInt:
      return "Ints";
    case Type::kFloat:
      break;
  }
  return "Floats";
}

const char* loader_of(Type type) {
  switch (type) {
    case Type::kBool:
      return "bools";
    case Type::kInt:
      return "ints";
    case Type::kFloat:
      break;
  }
  return "floats";
}

/// Returns the name of the function in mask_bounds.cuh for an operation on a type. Returns null if the operation is
/// inexact.
const char* function_of(Op op, Type type) {
  switch (op) {
    case Op::kNegate:
      return "negate";
    case Op::kAbs:
      return "absolute";
    case Op::kSign:
      return "sign";
    case Op::kNot:
      return type == Type::kBool ? "logical_not" : "bits_not";
    case Op::kFloor:
    case Op::kCeil:
    case Op::kRound:
    case Op::kTrunc:
      return "rounded";
    case Op::kSqrt:
      return "square_root";
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
    case Op::kAnd:
      return type == Type::kBool ? "logical_and" : "bits_and";
    case Op::kOr:
      return type == Type::kBool ? "logical_or" : "bits_or";
    case Op::kXor:
      return type == Type::kBool ? "logical_xor" : "bits_xor";
    case Op::kShiftLeft:
      return "shift_left";
    case Op::kShiftRight:
      return "shift_right";
    case Op::kEqual:
      return "equal";
    case Op::kNotEqual:
      return "not_equal";
    case Op::kLess:
      return "less";
    case Op::kLessEqual:
      return "less_equal";
    case Op::kToInt:
      return "to_int";
    case Op::kToFloat:
      return "to_float";
    case Op::kSelect:
      return "select";
    default:
      return nullptr;
  }
}

std::string number(double x) {
  if (std::isinf(x)) return x > 0 ? "bounds::kInfinite" : "-bounds::kInfinite";
  return fmt::format("{:a}", x);
}

std::string constant(const Graph& graph, Id id) {
  const Node& node = graph[id];
  if (node.type == Type::kBool) return node.value != 0 ? "{true, true}" : "{false, false}";
  if (node.type == Type::kInt) return fmt::format("bounds::constant({}LL)", static_cast<std::int64_t>(node.value));
  // The bounds include a margin for float32.
  const Interval own = bounds_of(graph, id, {}, [](auto...) { return Interval{}; });
  return fmt::format("{{{}, {}, {}}}", number(own.low), number(own.high), own.has_nan);
}

std::string operation(const Graph& graph, Id id) {
  const Node& node = graph[id];
  if (node.op == Op::kConstant) return constant(graph, id);
  if (node.op == Op::kVariable) return fmt::format("at.{}", member_of(static_cast<Variable>(node.which)));
  std::vector<std::string> args;
  for (std::size_t n = 0; n < node.num_args(); ++n) args.push_back(fmt::format("v{}", node.args[n]));
  if (node.op == Op::kLoad) {
    return fmt::format("captures.template {}<{}>({})", loader_of(node.type), node.which, fmt::join(args, ", "));
  }
  return fmt::format("bounds::{}({})", function_of(node.op, graph.operand_type(node)), fmt::join(args, ", "));
}

}  // namespace

std::string print_bounds_struct(const Graph& graph, std::string_view name, Id root) {
  std::string text = fmt::format(
      "struct {} {{\n  template <class Captures>\n  static ATTEND_HOST_DEVICE void evaluate([[maybe_unused]] const "
      "attend::BoundsPoint& at, [[maybe_unused]] const Captures& captures, attend::mask_bounds::Bools& result) {{\n"
      "    namespace bounds = attend::mask_bounds;\n",
      name);
  const std::vector<bool> needed = graph.needed_by(root);
  for (std::size_t n = 0; n < needed.size(); ++n) {
    if (!needed[n]) continue;
    const auto id = static_cast<Id>(n);
    text += fmt::format("    const bounds::{} v{} = {};\n", type_of(graph.type(id)), id, operation(graph, id));
  }
  return text + fmt::format("    result = v{};\n  }}\n}};\n", root);
}

std::optional<Op> inexact_operation(const Graph& graph, Id root) {
  const std::vector<bool> needed = graph.needed_by(root);
  for (std::size_t n = 0; n < needed.size(); ++n) {
    const Node& node = graph[static_cast<Id>(n)];
    if (!needed[n] || node.op == Op::kConstant || node.op == Op::kVariable || node.op == Op::kLoad) continue;
    if (function_of(node.op, graph.operand_type(node)) == nullptr) return node.op;
  }
  return std::nullopt;
}

}  // namespace attend::expr
