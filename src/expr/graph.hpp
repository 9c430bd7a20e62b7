// A score or mask function as a graph of scalars: what a user's text becomes, and what the reference, derivatives,
// bounds and code are made of.
//
// A node follows its operands. Equal nodes are one, and what depends on constants alone is a constant. Every operation
// has a result for all operands, so a node may be computed where it is not needed:
//   - integers are 32 bits wide and wrap; n // 0 and n % 0 are 0; shifts count modulo 32
//   - floats are IEEE's: float32 in kernels, where a product and a sum may be rounded as one; float64 in the reference
//   - a float becomes an integer towards zero, within the range of integers; NaN becomes 0
//   - the subscripts of a load are clamped to the tensor
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "attend/error.hpp"

namespace attend::expr {

enum class Type : std::uint8_t { kBool, kInt, kFloat };

[[nodiscard]] const char* type_name(Type type);

/// What a function may ask for beside its tensors. All but the score are integers.
enum class Variable : std::uint8_t {
  kScore,       ///< after the options of a call, before masks
  kBatch,       ///< b: the sequence
  kHead,        ///< h: of q
  kRow,         ///< q: counted from the sequence's first row
  kKey,         ///< k: likewise
  kRowsLength,  ///< q_len: rows of the sequence
  kKeysLength,  ///< k_len: keys of the sequence
};
constexpr std::size_t kVariables = 7;

[[nodiscard]] const char* variable_name(Variable variable);
[[nodiscard]] constexpr Type variable_type(Variable variable) {
  return variable == Variable::kScore ? Type::kFloat : Type::kInt;
}

enum class Op : std::uint8_t {
  kConstant,
  kVariable,
  kLoad,
  // T -> T for T = int, float
  kNegate,
  kAbs,
  kSign,  ///< -1, 0 or 1; NaN for NaN
  // T -> T for T = bool, int
  kNot,
  // float -> float
  kFloor,
  kCeil,
  kRound,  ///< to the nearest, halves to the even one
  kTrunc,
  kExp,
  kExp2,
  kLog,
  kLog2,
  kLog1p,
  kSqrt,
  kRsqrt,
  kSin,
  kCos,
  kTan,
  kTanh,
  kSigmoid,
  kErf,
  // (T, T) -> T for T = int, float
  kAdd,
  kSubtract,
  kMultiply,
  kFloorDivide,  ///< the quotient's floor
  kFloorMod,     ///< a - b floor(a / b): of b's sign
  kMin,          ///< NaN if either is
  kMax,
  // (float, float) -> float
  kDivide,
  kPow,
  // (T, T) -> T for T = bool, int
  kAnd,
  kOr,
  kXor,
  // (int, int) -> int
  kShiftLeft,
  kShiftRight,  ///< keeps the sign
  // (T, T) -> bool for any T
  kEqual,
  kNotEqual,
  // (T, T) -> bool for T = int, float
  kLess,
  kLessEqual,
  // Conversions
  kToInt,    ///< of bool or float
  kToFloat,  ///< of int
  // (bool, T, T) -> T
  kSelect,
};

[[nodiscard]] const char* op_name(Op op);

using Id = std::int32_t;  // the place of a node in its graph
constexpr Id kNone = -1;
constexpr std::size_t kMostSubscripts = 4;

/// A tensor that the caller gives by name. Its values are no part of the graph.
struct Capture {
  std::string name;
  Type type = Type::kFloat;
  std::vector<std::int64_t> shape;  ///< as many subscripts as it has extents, 0 to 4, each at least 1
};

struct Node {
  Op op = Op::kConstant;
  Type type = Type::kFloat;
  std::array<Id, kMostSubscripts> args = {kNone, kNone, kNone, kNone};
  std::int32_t which = 0;  ///< of kVariable and kLoad: the Variable, the place of the capture
  double value = 0;        ///< of kConstant

  [[nodiscard]] std::size_t num_args() const;
};

/// The graph has as many nodes as it may have.
class GraphIsFull : public Error {
 public:
  GraphIsFull();
};

class Graph {
 public:
  /// More nodes are refused: what a text that short cannot mean takes neither memory nor a compiler's time.
  static constexpr std::size_t kMostNodes = 4096;

  explicit Graph(std::vector<Capture> captures = {}) : captures_(std::move(captures)) {}

  [[nodiscard]] const std::vector<Capture>& captures() const { return captures_; }
  [[nodiscard]] std::size_t size() const { return nodes_.size(); }
  [[nodiscard]] const Node& operator[](Id id) const { return nodes_[static_cast<std::size_t>(id)]; }
  [[nodiscard]] Type type(Id id) const { return (*this)[id].type; }
  /// Of an operation's operands, the condition of kSelect aside: what apply() asks for.
  [[nodiscard]] Type operand_type(const Node& node) const { return type(node.args[node.op == Op::kSelect ? 1 : 0]); }
  [[nodiscard]] bool is_constant(Id id) const { return (*this)[id].op == Op::kConstant; }
  [[nodiscard]] bool is_constant(Id id, double value) const { return is_constant(id) && (*this)[id].value == value; }

  [[nodiscard]] Id constant(Type type, double value);
  [[nodiscard]] Id number(double value) { return constant(Type::kFloat, value); }
  [[nodiscard]] Id variable(Variable variable);
  /// An element of a capture; as many subscripts, integers, as it has extents.
  [[nodiscard]] Id load(std::int32_t capture, std::span<const Id> subscripts);
  /// An operation on operands of the types that it takes; std::logic_error for others. Throws GraphIsFull.
  [[nodiscard]] Id make(Op op, Id a, Id b = kNone, Id c = kNone);

  /// The node as a float: itself, or converted.
  [[nodiscard]] Id as_float(Id id);
  /// As an integer, of a bool or an integer.
  [[nodiscard]] Id as_int(Id id);
  /// Whether it is not 0.
  [[nodiscard]] Id as_bool(Id id);

  /// Which of the nodes up to `root` its value depends on.
  [[nodiscard]] std::vector<bool> needed_by(Id root) const;
  /// Likewise, of all nodes, on which of them the values of any of `roots` depend.
  [[nodiscard]] std::vector<bool> needed_by(std::span<const Id> roots) const;

 private:
  [[nodiscard]] Id add(const Node& node);
  [[nodiscard]] Id simplified(Op op, Id a, Id b, Id c) const;

  struct Hash {
    std::size_t operator()(const Node& node) const;
  };
  struct Equal {
    bool operator()(const Node& a, const Node& b) const;
  };

  std::vector<Capture> captures_;
  std::vector<Node> nodes_;
  std::unordered_map<Node, Id, Hash, Equal> places_;
};

/// What `op` gives for operands of `type`, see Graph::operand_type(). bool is 0 or 1, integers are whole.
[[nodiscard]] double apply(Op op, Type type, double a, double b, double c);

}  // namespace attend::expr
