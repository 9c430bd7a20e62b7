#include "expr/graph.hpp"

#include <bit>
#include <cmath>
#include <iterator>
#include <stdexcept>
#include <utility>

#include "attend/error.hpp"

namespace attend::expr {
namespace {

constexpr unsigned kBools = 1, kInts = 2, kFloats = 4;  // bits of types, which can be combined to a set

/// Properties of an operation.
struct OpFacts {
  Op op;
  const char* name;
  std::size_t num_args;
  unsigned takes;         // allowed types of its operands, except the first operand of kSelect
  bool compares = false;  // true if the result is a bool
};

// The order is that of the enumerators of Op.
constexpr OpFacts kOps[] = {{Op::kConstant, "constant", 0, 0},
                            {Op::kVariable, "variable", 0, 0},
                            {Op::kLoad, "load", 0, 0},
                            {Op::kNegate, "-", 1, kInts | kFloats},
                            {Op::kAbs, "abs", 1, kInts | kFloats},
                            {Op::kSign, "sign", 1, kInts | kFloats},
                            {Op::kNot, "!", 1, kBools | kInts},
                            {Op::kFloor, "floor", 1, kFloats},
                            {Op::kCeil, "ceil", 1, kFloats},
                            {Op::kRound, "round", 1, kFloats},
                            {Op::kTrunc, "trunc", 1, kFloats},
                            {Op::kExp, "exp", 1, kFloats},
                            {Op::kExp2, "exp2", 1, kFloats},
                            {Op::kLog, "log", 1, kFloats},
                            {Op::kLog2, "log2", 1, kFloats},
                            {Op::kLog1p, "log1p", 1, kFloats},
                            {Op::kSqrt, "sqrt", 1, kFloats},
                            {Op::kRsqrt, "rsqrt", 1, kFloats},
                            {Op::kSin, "sin", 1, kFloats},
                            {Op::kCos, "cos", 1, kFloats},
                            {Op::kTan, "tan", 1, kFloats},
                            {Op::kTanh, "tanh", 1, kFloats},
                            {Op::kSigmoid, "sigmoid", 1, kFloats},
                            {Op::kErf, "erf", 1, kFloats},
                            {Op::kAdd, "+", 2, kInts | kFloats},
                            {Op::kSubtract, "-", 2, kInts | kFloats},
                            {Op::kMultiply, "*", 2, kInts | kFloats},
                            {Op::kFloorDivide, "//", 2, kInts | kFloats},
                            {Op::kFloorMod, "%", 2, kInts | kFloats},
                            {Op::kMin, "min", 2, kInts | kFloats},
                            {Op::kMax, "max", 2, kInts | kFloats},
                            {Op::kDivide, "/", 2, kFloats},
                            {Op::kPow, "pow", 2, kFloats},
                            {Op::kAnd, "&", 2, kBools | kInts},
                            {Op::kOr, "|", 2, kBools | kInts},
                            {Op::kXor, "^", 2, kBools | kInts},
                            {Op::kShiftLeft, "<<", 2, kInts},
                            {Op::kShiftRight, ">>", 2, kInts},
                            {Op::kEqual, "==", 2, kBools | kInts | kFloats, true},
                            {Op::kNotEqual, "!=", 2, kBools | kInts | kFloats, true},
                            {Op::kLess, "<", 2, kInts | kFloats, true},
                            {Op::kLessEqual, "<=", 2, kInts | kFloats, true},
                            {Op::kToInt, "int", 1, kBools | kFloats},
                            {Op::kToFloat, "float", 1, kInts},
                            {Op::kSelect, "?:", 3, kBools | kInts | kFloats}};

constexpr bool in_order() {
  for (std::size_t n = 0; n < std::size(kOps); ++n) {
    if (kOps[n].op != static_cast<Op>(n)) return false;
  }
  return std::size(kOps) == static_cast<std::size_t>(Op::kSelect) + 1;
}
static_assert(in_order());

constexpr const OpFacts& facts_of(Op op) {
  return kOps[static_cast<std::size_t>(op)];
}

constexpr unsigned set_of(Type type) {
  return 1U << static_cast<unsigned>(type);
}

Type result_type(Op op, Type operands) {
  if (facts_of(op).compares) return Type::kBool;
  if (op == Op::kToInt) return Type::kInt;
  if (op == Op::kToFloat) return Type::kFloat;
  return operands;
}

}  // namespace

const char* type_name(Type type) {
  constexpr const char* kNames[] = {"bool", "int", "float"};
  return kNames[static_cast<std::size_t>(type)];
}

const char* variable_name(Variable variable) {
  constexpr const char* kNames[kVariables] = {"score", "b", "h", "q", "k", "q_len", "k_len"};
  return kNames[static_cast<std::size_t>(variable)];
}

const char* op_name(Op op) {
  return facts_of(op).name;
}

std::size_t Node::num_args() const {
  std::size_t count = 0;
  while (count < args.size() && args[count] != kNone) ++count;
  return count;
}

std::size_t Graph::Hash::operator()(const Node& node) const {
  std::uint64_t hash = static_cast<std::uint64_t>(node.op) << 8 | static_cast<std::uint64_t>(node.type);
  const auto mix = [&](std::uint64_t word) { hash = (hash ^ word) * 0x9e3779b97f4a7c15U + (hash >> 29); };
  for (const Id arg : node.args) mix(static_cast<std::uint32_t>(arg));
  mix(static_cast<std::uint32_t>(node.which));
  mix(std::bit_cast<std::uint64_t>(node.value));
  return hash;
}

bool Graph::Equal::operator()(const Node& a, const Node& b) const {
  return a.op == b.op && a.type == b.type && a.args == b.args && a.which == b.which &&
         // Bits are compared, so that -0 differs from 0, and NaN equals NaN.
         std::bit_cast<std::uint64_t>(a.value) == std::bit_cast<std::uint64_t>(b.value);
}

GraphIsFull::GraphIsFull()
    : Error(ErrorCode::kInvalidArgument,
            "a function of more than " + std::to_string(Graph::kMostNodes) + " operations, its derivatives included") {}

Id Graph::add(const Node& node) {
  if (const auto found = places_.find(node); found != places_.end()) return found->second;
  if (nodes_.size() == kMostNodes) throw GraphIsFull();
  const auto id = static_cast<Id>(nodes_.size());
  nodes_.push_back(node);
  places_.emplace(node, id);
  return id;
}

Id Graph::constant(Type type, double value) {
  return add({.op = Op::kConstant, .type = type, .value = value});
}

Id Graph::variable(Variable variable) {
  return add({.op = Op::kVariable, .type = variable_type(variable), .which = static_cast<std::int32_t>(variable)});
}

Id Graph::load(std::int32_t capture, std::span<const Id> subscripts) {
  const Capture& tensor = captures_[static_cast<std::size_t>(capture)];
  if (subscripts.size() != tensor.shape.size()) throw std::logic_error("expr: a load with too few subscripts");
  Node node = {.op = Op::kLoad, .type = tensor.type, .which = capture};
  for (std::size_t n = 0; n < subscripts.size(); ++n) {
    if (type(subscripts[n]) != Type::kInt) throw std::logic_error("expr: a subscript that is no integer");
    node.args[n] = subscripts[n];
  }
  return add(node);
}

Id Graph::make(Op op, Id a, Id b, Id c) {
  const OpFacts& facts = facts_of(op);
  const std::array<Id, 3> args = {a, b, c};
  const Type operands = type(op == Op::kSelect ? b : a);
  bool fits = facts.num_args > 0 && (set_of(operands) & facts.takes) != 0;
  for (std::size_t n = 0; n < args.size(); ++n) fits = fits && (args[n] != kNone) == (n < facts.num_args);
  if (op == Op::kSelect) {
    fits = fits && type(a) == Type::kBool && type(c) == operands;
  } else {
    fits = fits && (b == kNone || type(b) == operands);
  }
  if (!fits) throw std::logic_error(std::string("expr: operands of '") + facts.name + "'");
  const auto value = [&](Id id) { return id == kNone ? 0.0 : (*this)[id].value; };
  bool is_known = true;
  for (std::size_t n = 0; n < facts.num_args; ++n) is_known = is_known && is_constant(args[n]);
  if (is_known) return constant(result_type(op, operands), apply(op, operands, value(a), value(b), value(c)));
  if (const Id simple = simplified(op, a, b, c); simple != kNone) return simple;
  return add({.op = op, .type = result_type(op, operands), .args = {a, b, c, kNone}});
}

/// Returns an existing node that has the same value as the operation for all operands, including NaN and infinity.
/// Returns kNone if there is none.
Id Graph::simplified(Op op, Id a, Id b, Id c) const {
  switch (op) {
    case Op::kAdd:  // a float operand can be left out only if it is -0, because -0 + 0 is 0
      if (is_constant(b, 0) && (type(b) == Type::kInt || std::signbit((*this)[b].value))) return a;
      return is_constant(a, 0) && (type(a) == Type::kInt || std::signbit((*this)[a].value)) ? b : kNone;
    case Op::kSubtract:
      return is_constant(b, 0) && !std::signbit((*this)[b].value) ? a : kNone;
    case Op::kMultiply:
      return is_constant(b, 1) ? a : is_constant(a, 1) ? b : kNone;
    case Op::kDivide:
      return is_constant(b, 1) ? a : kNone;
    case Op::kNegate:
      return (*this)[a].op == Op::kNegate ? (*this)[a].args[0] : kNone;
    case Op::kNot:
      return (*this)[a].op == Op::kNot ? (*this)[a].args[0] : kNone;
    case Op::kMin:
    case Op::kMax:
      return a == b ? a : kNone;
    case Op::kAnd:
    case Op::kOr:
      if (a == b) return a;
      if (type(a) != Type::kBool) return kNone;
      if (is_constant(a)) return is_constant(a, op == Op::kAnd ? 1 : 0) ? b : a;
      return !is_constant(b) ? kNone : is_constant(b, op == Op::kAnd ? 1 : 0) ? a : b;
    case Op::kSelect:
      return is_constant(a) ? (is_constant(a, 0) ? c : b) : b == c ? b : kNone;
    default:
      return kNone;
  }
}

Id Graph::as_float(Id id) {
  if (type(id) == Type::kFloat) return id;
  return make(Op::kToFloat, as_int(id));
}

Id Graph::as_int(Id id) {
  return type(id) == Type::kInt ? id : make(Op::kToInt, id);
}

Id Graph::as_bool(Id id) {
  if (type(id) == Type::kBool) return id;
  return make(Op::kNotEqual, id, constant(type(id), 0));
}

std::vector<bool> Graph::needed_by(Id root) const {
  std::vector<bool> needed(static_cast<std::size_t>(root) + 1, false);
  needed.back() = true;
  for (Id id = root; id >= 0; --id) {
    if (!needed[static_cast<std::size_t>(id)]) continue;
    for (const Id arg : (*this)[id].args) {
      if (arg != kNone) needed[static_cast<std::size_t>(arg)] = true;
    }
  }
  return needed;
}

std::vector<bool> Graph::needed_by(std::span<const Id> roots) const {
  std::vector<bool> needed(size(), false);
  for (const Id root : roots) {
    const std::vector<bool> of_one = needed_by(root);
    for (std::size_t n = 0; n < of_one.size(); ++n) needed[n] = needed[n] || of_one[n];
  }
  return needed;
}

}  // namespace attend::expr
