#include "expr/row_program.hpp"

#include <algorithm>
#include <cstddef>

namespace attend::expr {
namespace {

/// Allocates buffers of one type. take() returns the free buffer with the lowest number.
class Buffers {
 public:
  [[nodiscard]] std::int32_t take() {
    const auto free = std::find(is_taken_.begin(), is_taken_.end(), false);
    const auto at = static_cast<std::int32_t>(free - is_taken_.begin());
    if (free == is_taken_.end()) is_taken_.push_back(true);
    is_taken_[static_cast<std::size_t>(at)] = true;
    return at;
  }
  void give(std::int32_t at) { is_taken_[static_cast<std::size_t>(at)] = false; }
  [[nodiscard]] std::int32_t count() const { return static_cast<std::int32_t>(is_taken_.size()); }

 private:
  std::vector<bool> is_taken_;
};

class Builder {
 public:
  Builder(const Graph& graph, std::span<const Id> results)
      : graph_(graph), results_(results), places_(graph.size()), last_use_(graph.size(), -1), varies_(graph.size()) {}

  [[nodiscard]] RowProgram program() {
    find_needed();
    for (const Id id : order_) {
      if (graph_.is_constant(id)) add_constant(id);
    }
    for (const Id id : order_) {
      if (!graph_.is_constant(id) && !varies_[at(id)]) add_scalar(id);
    }
    for (std::size_t n = 0; n < order_.size(); ++n) {
      if (varies_[at(order_[n])]) add_vector(order_[n], static_cast<int>(n));
    }
    for (const Id result : results_) program_.results.push_back(places_[at(result)]);
    program_.num_float_buffers = floats_.count();
    program_.num_int_buffers = ints_.count();
    return std::move(program_);
  }

 private:
  static constexpr int kForEver = 1 << 30;

  static std::size_t at(Id id) { return static_cast<std::size_t>(id); }

  void find_needed() {
    const std::vector<bool> needed = graph_.needed_by(results_);
    for (std::size_t n = 0; n < needed.size(); ++n) {
      if (!needed[n]) continue;
      const auto place = static_cast<int>(order_.size());
      const auto id = static_cast<Id>(n);
      const Node& node = graph_[id];
      order_.push_back(id);
      const auto variable = static_cast<Variable>(node.which);
      varies_[n] = node.op == Op::kVariable && (variable == Variable::kScore || variable == Variable::kKey);
      for (std::size_t a = 0; a < node.num_args(); ++a) {
        varies_[n] = varies_[n] || varies_[at(node.args[a])];
        last_use_[at(node.args[a])] = place;
      }
    }
    for (const Id result : results_) last_use_[at(result)] = kForEver;
  }

  void add_constant(Id id) {
    places_[at(id)] = {false, program_.num_scalars++, graph_.type(id)};
    const double value = graph_[id].value;
    program_.constants.push_back(graph_.type(id) == Type::kFloat ? static_cast<float>(value) : value);
  }

  [[nodiscard]] Instruction instruction(Id id) const {
    const Node& node = graph_[id];
    Instruction made;
    made.op = node.op;
    made.which = node.which;
    made.num_args = static_cast<std::int32_t>(node.num_args());
    if (node.num_args() > 0 && node.op != Op::kLoad) made.operand_type = graph_.operand_type(node);
    for (std::size_t a = 0; a < node.num_args(); ++a) made.args[a] = places_[at(node.args[a])];
    return made;
  }

  void add_scalar(Id id) {
    Instruction made = instruction(id);
    made.result = places_[at(id)] = {false, program_.num_scalars++, graph_.type(id)};
    program_.of_rows.push_back(made);
  }

  [[nodiscard]] Buffers& buffers_of(Type type) { return type == Type::kFloat ? floats_ : ints_; }

  void add_vector(Id id, int place) {
    Instruction made = instruction(id);
    const Node& node = graph_[id];
    for (std::size_t a = 0; a < node.num_args(); ++a) {
      const Id arg = node.args[a];
      if (!varies_[at(arg)] || last_use_[at(arg)] != place) continue;
      last_use_[at(arg)] = -1;  // ensures that a buffer is freed only once if both operands are the same node
      buffers_of(graph_.type(arg)).give(places_[at(arg)].at);
    }
    const Type type = graph_.type(id);
    made.result = places_[at(id)] = {true, buffers_of(type).take(), type};
    program_.of_keys.push_back(made);
  }

  const Graph& graph_;
  std::span<const Id> results_;
  RowProgram program_;
  std::vector<Id> order_;
  std::vector<Operand> places_;
  std::vector<int> last_use_;  // for each node, the index in order_ of its last use
  std::vector<bool> varies_;
  Buffers floats_, ints_;
};

}  // namespace

RowProgram RowProgram::of(const Graph& graph, std::span<const Id> results) {
  return Builder(graph, results).program();
}

}  // namespace attend::expr
