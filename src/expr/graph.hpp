// A score or mask function as a graph of scalar operations. The parser makes the graph from a user's text. The
// reference, derivatives, bounds and generated code are computed from the graph.
//
// A node has a larger number than its operands. Equal nodes are stored once. If all operands of a node are constants,
// the node is a constant. Every operation is defined for all operands, so a node may be computed even if its value is
// not needed. The rules are:
//
// - Integers have 32 bits and wrap. n // 0 and n % 0 are 0. Shift counts are taken modulo 32.
//
// - Floats follow IEEE 754. They are float32 in kernels, which may fuse a product and a sum, and float64 in the
//   reference.
//
// - Conversion of a float to an integer rounds towards zero and saturates. NaN becomes 0.
//
// - The subscripts of a load are clamped to the tensor's extents.
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

/// Variables of a function. All except the score are integers.
enum class Variable : std::uint8_t {
  kScore,       ///< the score after all options of the call, but before masks
  kBatch,       ///< variable b, the number of the sequence
  kHead,        ///< variable h, the number of the query head
  kRow,         ///< variable q, the number of the row, counted from the first row of the sequence
  kKey,         ///< variable k, the number of the key, counted from the first key of the sequence
  kRowsLength,  ///< variable q_len, the number of rows in the sequence
  kKeysLength,  ///< variable k_len, the number of keys in the sequence
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
  kSign,  ///< result -1, 0 or 1, and NaN for NaN
  // T -> T for T = bool, int
  kNot,
  // float -> float
  kFloor,
  kCeil,
  kRound,  ///< rounds to nearest, ties to even
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
  kFloorDivide,  ///< floor of the quotient
  kFloorMod,     ///< a - b floor(a / b), with the sign of b
  kMin,          ///< NaN if either operand is NaN
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
  kShiftRight,  ///< arithmetic shift
  // (T, T) -> bool for any T
  kEqual,
  kNotEqual,
  // (T, T) -> bool for T = int, float
  kLess,
  kLessEqual,
  // Conversions.
  kToInt,    ///< from bool or float
  kToFloat,  ///< from int
  // (bool, T, T) -> T
  kSelect,
};

[[nodiscard]] const char* op_name(Op op);

using Id = std::int32_t;  // index of a node in its graph
constexpr Id kNone = -1;
constexpr std::size_t kMostSubscripts = 4;

/// A tensor that the caller passes by name. Its values are not part of the graph.
struct Capture {
  std::string name;
  Type type = Type::kFloat;
  std::vector<std::int64_t> shape;  ///< one extent for each of 0 to 4 subscripts; each is at least 1
};

struct Node {
  Op op = Op::kConstant;
  Type type = Type::kFloat;
  std::array<Id, kMostSubscripts> args = {kNone, kNone, kNone, kNone};
  std::int32_t which = 0;  ///< the Variable of a kVariable node, or the index of the capture of a kLoad node
  double value = 0;        ///< value of a kConstant

  [[nodiscard]] std::size_t num_args() const;
};

/// Thrown if a graph would have more than the maximum number of nodes.
class GraphIsFull : public Error {
 public:
  GraphIsFull();
};

class Graph {
 public:
  /// Maximum number of nodes. It limits memory and compile time, because a short text can describe a very large graph.
  static constexpr std::size_t kMostNodes = 4096;

  explicit Graph(std::vector<Capture> captures = {}) : captures_(std::move(captures)) {}

  [[nodiscard]] const std::vector<Capture>& captures() const { return captures_; }
  [[nodiscard]] std::size_t size() const { return nodes_.size(); }
  [[nodiscard]] const Node& operator[](Id id) const { return nodes_[static_cast<std::size_t>(id)]; }
  [[nodiscard]] Type type(Id id) const { return (*this)[id].type; }
  /// Returns the type of an operation's operands, which apply() needs. For kSelect, it is the type of the two values,
  /// not of the condition.
  [[nodiscard]] Type operand_type(const Node& node) const { return type(node.args[node.op == Op::kSelect ? 1 : 0]); }
  [[nodiscard]] bool is_constant(Id id) const { return (*this)[id].op == Op::kConstant; }
  [[nodiscard]] bool is_constant(Id id, double value) const { return is_constant(id) && (*this)[id].value == value; }

  [[nodiscard]] Id constant(Type type, double value);
  [[nodiscard]] Id number(double value) { return constant(Type::kFloat, value); }
  [[nodiscard]] Id variable(Variable variable);
  /// Returns a node that loads an element of a capture. `subscripts` are integer nodes, one for each extent.
  [[nodiscard]] Id load(std::int32_t capture, std::span<const Id> subscripts);
  /// Returns a node for an operation. Throws std::logic_error if the types of the operands are invalid, and GraphIsFull
  /// if there are too many nodes.
  [[nodiscard]] Id make(Op op, Id a, Id b = kNone, Id c = kNone);

  /// Returns the node if it is a float, and otherwise a node that converts it to a float.
  [[nodiscard]] Id as_float(Id id);
  /// Returns a bool or integer node as an integer node.
  [[nodiscard]] Id as_int(Id id);
  /// Returns a bool node that is true if the value of `id` is not 0.
  [[nodiscard]] Id as_bool(Id id);

  /// Returns one flag for each node up to `root`. The flag is true if the value of `root` depends on the node.
  [[nodiscard]] std::vector<bool> needed_by(Id root) const;
  /// Returns one flag for each node of the graph. The flag is true if the value of any node in `roots` depends on the
  /// node.
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

/// Returns the result of `op` for operands of type `type` (Graph::operand_type()). A bool is 0 or 1, and an integer is
/// a whole number.
[[nodiscard]] double apply(Op op, Type type, double a, double b, double c);

}  // namespace attend::expr
