// Implements ScoreFunction: converts a text and tensors to the form that a Problem holds.
#include "attend/score_function.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#define XXH_INLINE_ALL  // makes xxhash header-only, so that no library is needed
#include <xxhash.h>

#include "core/dtype_traits.hpp"
#include "core/score_function_state.hpp"
#include "expr/bounds.hpp"
#include "expr/print.hpp"
#include "expr/score_program.hpp"
#include "kernels/attention/coarse_lse.cuh"
#include "kernels/attention/score_transform.cuh"
#include "score/captures.hpp"
#include "score/gradients_text.hpp"
#include "score/held_text.hpp"
#include "score/known_options.hpp"

namespace attend {
namespace {

/// Calls rule() for each node up to `root`. The arguments of rule() are the node and the results for earlier nodes. The
/// loop visits each node once, in the order of nodes. A recursion could visit a node many times, because a node may be
/// an operand of many others.
template <class Rule>
std::vector<bool> of_all_nodes(const expr::Graph& graph, expr::Id root, const Rule& rule) {
  std::vector<bool> found;
  for (expr::Id id = 0; id <= root; ++id) found.push_back(rule(graph[id], found));
  return found;
}

/// Returns whether an element of a capture reaches the value only through additions, subtractions, negations, min, max
/// and ?:. The caller may use very low elements to hide keys.
bool adds_an_element(const expr::Graph& graph, expr::Id root) {
  const auto rule = [](const expr::Node& node, const std::vector<bool>& found) {
    const auto any = [&](std::size_t first) {
      return std::any_of(node.args.begin() + first, node.args.begin() + node.num_args(),
                         [&](expr::Id arg) { return found[static_cast<std::size_t>(arg)]; });
    };
    switch (node.op) {
      case expr::Op::kLoad:
        return node.type == expr::Type::kFloat;
      case expr::Op::kSelect:
        return any(1);
      case expr::Op::kAdd:
      case expr::Op::kSubtract:
      case expr::Op::kNegate:
      case expr::Op::kMin:
      case expr::Op::kMax:
        return any(0);
      default:
        return false;
    }
  };
  return of_all_nodes(graph, root, rule).back();
}

/// Returns whether the function may hide a key whose score is finite.
bool may_hide(const expr::ScoreProgram& program) {
  constexpr double kLargest = 3.4e38, kMostIndex = 0x1p31;
  expr::Ranges ranges;
  ranges.fill({0, kMostIndex});
  ranges[static_cast<std::size_t>(expr::Variable::kScore)] = {-kLargest, kLargest};
  const auto any = [](auto...) { return expr::Interval{-kLargest, kLargest}; };
  return expr::bounds_of(program.graph, program.result, ranges, any).low == -INFINITY;
}

/// Returns whether a constant of the function may make all values of a row very large, so that the rounding of lse
/// matters.
bool has_huge_constant(const expr::ScoreProgram& program) {
  const std::vector<bool> needed = program.graph.needed_by(program.result);
  for (std::size_t n = 0; n < needed.size(); ++n) {
    const expr::Node& node = program.graph[static_cast<expr::Id>(n)];
    if (!needed[n] || node.op != expr::Op::kConstant || node.type != expr::Type::kFloat) continue;
    if (std::isfinite(node.value) && std::abs(node.value) >= kCoarseLse) return true;
  }
  return false;
}

/// Returns whether the derivative with respect to the score is 1 for all values other than -inf. The value -inf can be
/// ignored, because all its gradients are 0.
bool has_unit_slope(const expr::Graph& graph, expr::Id root) {
  const std::vector<bool> has_score = of_all_nodes(graph, root, [](const expr::Node& node, const auto& found) {
    return (node.op == expr::Op::kVariable && node.type == expr::Type::kFloat) ||
           std::any_of(node.args.begin(), node.args.begin() + node.num_args(),
                       [&](expr::Id arg) { return found[static_cast<std::size_t>(arg)]; });
  });
  const auto rule = [&](const expr::Node& node, const std::vector<bool>& found) {
    const auto scores = [&](std::size_t n) { return has_score[static_cast<std::size_t>(node.args[n])]; };
    const auto is_one = [&](std::size_t n) { return found[static_cast<std::size_t>(node.args[n])]; };
    const auto is_hidden = [&](std::size_t n) { return graph.is_constant(node.args[n], -INFINITY); };
    switch (node.op) {
      case expr::Op::kVariable:
        return node.type == expr::Type::kFloat;
      case expr::Op::kAdd:
        return scores(0) ? is_one(0) && !scores(1) : is_one(1);
      case expr::Op::kSubtract:
        return is_one(0) && !scores(1);
      case expr::Op::kSelect:
        return !scores(0) && (is_hidden(1) || is_one(1)) && (is_hidden(2) || is_one(2));
      default:
        return false;
    }
  };
  return of_all_nodes(graph, root, rule).back();
}

/// In the source text, replaces calls of sin, cos and tan (kernels/attention/score_math.cuh) by inline code. The kernel
/// compiler crashes if a warp that has released registers calls a function. Warps that compute gradients release
/// registers.
std::string with_calls_in_line(std::string code) {
  for (const std::string name : {"sin", "cos", "tan"}) {
    const std::string call = "math::" + name + "(", in_line = "::" + name + "f(";
    for (std::size_t at = 0; (at = code.find(call, at)) != std::string::npos; at += in_line.size()) {
      code.replace(at, call.size(), in_line);
    }
  }
  return code;
}

ScoreModTraits traits_of_program(const expr::ScoreProgram& program) {
  ScoreModTraits traits = {.transforms = !has_unit_slope(program.graph, program.result),
                           .masks_from_memory = may_hide(program)};
  const std::vector<bool> needed = program.graph.needed_by(program.result);
  for (std::size_t n = 0; n < needed.size(); ++n) {
    const expr::Node& node = program.graph[static_cast<expr::Id>(n)];
    if (!needed[n]) continue;
    traits.adds_from_memory = traits.adds_from_memory || node.op == expr::Op::kLoad;
    traits.adds_by_position =
        traits.adds_by_position || (node.op == expr::Op::kVariable && node.type == expr::Type::kInt);
  }
  return traits;
}

/// Returns a digest of the source and of the memory layout of the captures.
std::array<std::int32_t, 4> digest_of(const std::string& source, const std::vector<Tensor>& captured,
                                      const std::vector<std::size_t>& ranks) {
  std::string all = source;
  for (std::size_t n = 0; n < captured.size(); ++n) {
    const core::CaptureForm form = core::form_of(captured[n], ranks[n]);
    all += fmt::format("\n{} {} {} {}", dtype_name(captured[n].dtype), ranks[n], form.is_near, form.is_unit);
  }
  const XXH128_hash_t hash = XXH3_128bits(all.data(), all.size());
  const auto word = [](std::uint64_t bits) { return static_cast<std::int32_t>(static_cast<std::uint32_t>(bits)); };
  return {word(hash.low64), word(hash.low64 >> 32), word(hash.high64), word(hash.high64 >> 32)};
}

/// Makes the CustomScore of a program. `previous` is null, or a score of the same program, whose source text is reused.
core::CustomScore custom_score_of(const expr::ScoreProgram& program, const std::vector<ScoreCapture>& captures,
                                  const core::CustomScore* previous) {
  core::CustomScore custom;
  custom.captured = score::in_four_dimensions("score", captures);
  for (const ScoreCapture& capture : captures) {
    custom.names.push_back(capture.name);
    custom.ranks.push_back(capture.tensor.shape.size());
  }
  custom.program = &program;
  if (previous != nullptr) {
    custom.source = previous->source;
    custom.traits = previous->traits;
    custom.gradients = previous->gradients;
    custom.held = previous->held;
    custom.may_be_huge = previous->may_be_huge;
    custom.softcap = previous->softcap;
    custom.alibi = previous->alibi;
  } else {
    custom.source =
        expr::print_struct(program.graph, "ScoreValueCode", std::array{program.result}) +
        expr::print_struct(program.graph, "ScoreFunctionCode", std::array{program.result, program.by_score});
    custom.traits = traits_of_program(program);
    const score::HeldText held = score::HeldText::of(program.graph, program.result);
    custom.source += held.before;
    custom.held = held.members;
    if (const std::vector<expr::Id> of_loads = expr::ScoreProgram::results_of(program.loads); !of_loads.empty()) {
      custom.source += with_calls_in_line(expr::print_struct(program.graph, "ScoreGradientsCode", of_loads));
      custom.gradients = score::gradients_text(program);
    }
    custom.softcap = score::softcap_of(program.graph, program.result);
    custom.alibi = score::alibi_of(program.graph, program.result);
    custom.may_be_huge = has_huge_constant(program) || adds_an_element(program.graph, program.result);
  }
  custom.digest = digest_of(custom.source + custom.gradients + custom.held, custom.captured, custom.ranks);
  return custom;
}

/// Makes the parsed program and the captures of a score function. `previous` is null, or a state with the same text.
std::shared_ptr<const ScoreFunction::State> make_state(std::string text, std::vector<ScoreCapture> captures,
                                                       const ScoreFunction::State* previous) {
  score::check_captures("score", captures);
  if (previous != nullptr && !score::is_same_program(previous->program->graph.captures(), captures)) previous = nullptr;
  std::shared_ptr<const expr::ScoreProgram> program =
      previous != nullptr ? previous->program
                          : std::make_shared<const expr::ScoreProgram>(
                                expr::ScoreProgram::of("score", text, score::names_and_shapes(captures)));
  core::CustomScore custom = custom_score_of(*program, captures, previous == nullptr ? nullptr : &previous->custom);
  return std::make_shared<const ScoreFunction::State>(
      ScoreFunction::State{std::move(text), std::move(captures), std::move(program), std::move(custom)});
}

}  // namespace

ScoreFunction::ScoreFunction(std::string_view text, std::vector<ScoreCapture> captures)
    : state_(make_state(std::string(text), std::move(captures), nullptr)) {}

ScoreFunction::ScoreFunction(std::shared_ptr<const State> state) noexcept : state_(std::move(state)) {}

ScoreFunction ScoreFunction::with(std::vector<ScoreCapture> captures) const {
  return ScoreFunction(make_state(state_->text, std::move(captures), state_.get()));
}

const std::string& ScoreFunction::text() const noexcept {
  return state_->text;
}

const std::vector<ScoreCapture>& ScoreFunction::captures() const noexcept {
  return state_->captures;
}

}  // namespace attend
