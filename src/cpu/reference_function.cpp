#include "cpu/reference_function.hpp"

#include <utility>

#include "core/elements.hpp"
#include "cpu/capture_sums.hpp"
#include "cpu/reference.hpp"
#include "cpu/reference_rows.hpp"
#include "expr/score_program.hpp"

namespace attend::cpu {

double captured_element(const core::CustomScore& score, std::size_t capture, std::span<const std::int64_t> subscripts) {
  const Tensor& t = score.captured[capture];
  std::int64_t at = 0;
  for (std::size_t d = 0; d < subscripts.size(); ++d) at += subscripts[d] * t.stride[d];
  if (t.dtype != DType::kI64) return core::load(t.data, t.dtype, at);
  const std::int64_t wide = static_cast<const std::int64_t*>(t.data)[at];
  return static_cast<std::int32_t>(static_cast<std::uint32_t>(wide));
}

ReferenceFunction::ReferenceFunction(const core::Problem& p, const core::Sequence& s, std::int64_t head,
                                     std::vector<expr::Id> nodes)
    : s_(s),
      head_(head),
      evaluator_(p.custom_score->program->graph, std::move(nodes),
                 [&score = *p.custom_score](std::int32_t capture, std::span<const std::int64_t> subscripts) {
                   return captured_element(score, static_cast<std::size_t>(capture), subscripts);
                 }) {}

ReferenceFunction::ReferenceFunction(const core::Problem& p, const core::Sequence& s, std::int64_t head)
    : ReferenceFunction(p, s, head, {p.custom_score->program->result, p.custom_score->program->by_score}) {}

std::span<const double> ReferenceFunction::nodes_at(std::int64_t i, std::int64_t j, double score) {
  const auto number = [](std::int64_t x) { return static_cast<double>(x); };
  return evaluator_.at(
      {score, number(s_.index), number(head_), number(i), number(j), number(s_.seqlen_q), number(s_.seqlen_k)});
}

ReferenceFunction::Value ReferenceFunction::at(std::int64_t i, std::int64_t j, double score) {
  const std::span<const double> values = nodes_at(i, j, score);
  return {values[0], values[1]};
}

void reference_captured_gradients(const core::Problem& p) {
  using namespace reference;
  const CaptureLayout layout(p);
  std::vector<double> sums(static_cast<std::size_t>(layout.size()));
  for (std::int64_t index = 0; index < p.num_sequences; ++index) {
    const Sequence s = p.sequence(index);
    for (std::int64_t head = 0; head < p.num_heads_q; ++head) {
      const std::int64_t key_head = head / p.heads_per_group();
      const Rows q(core::q_matrix(p.q, s, head)), dout(core::q_matrix(p.dout, s, head));
      const Rows k(core::k_matrix(p.k, s, key_head)), v(core::k_matrix(p.v, s, key_head));
      ReferenceFunction function(p, s, head, expr::ScoreProgram::results_of(layout.loads()));
      for_each_score_gradient(p, s, head, q, k, v, dout, [&](std::int64_t i, std::int64_t j, const ScoreGradient& g) {
        if (g.ds_of_function == 0) return;
        const std::span<const double> values = function.nodes_at(i, j, g.before_function);
        std::size_t result = 0;
        for (std::size_t n = 0; n < layout.loads().size(); ++n) {
          const std::size_t rank = layout.loads()[n].rank;
          std::array<std::int64_t, expr::kMostSubscripts> at = {};
          for (std::size_t d = 0; d < rank; ++d) at[d] = static_cast<std::int64_t>(values[result + 1 + d]);
          sums[static_cast<std::size_t>(layout.place(n, {at.data(), rank}))] += g.ds_of_function * values[result];
          result += 1 + rank;
        }
      });
    }
  }
  layout.store(sums);
}

}  // namespace attend::cpu
