#include "ring/algorithms/heads.hpp"

#include <limits>

#include "ring/algorithms/head_exchange.hpp"
#include "ring/engine/parts.hpp"

namespace attend::ring {
namespace {

using core::Problem;

/// Splits the problem into problems of one sequence each, as dropout requires. The dropout pattern depends on the
/// number of a head among all heads of all sequences. A rank has 1/num_ranks of the heads of each sequence. If its
/// problem for sequence s has the sequence number s * num_ranks + rank, each head has the same number as in the
/// complete problem.
std::vector<Problem> sequences_of(const Call& call, const Problem& share) {
  Call inner = {};
  std::vector<Problem> parts;
  const std::int64_t batch = share.varlen ? 1 : share.num_sequences;
  for (std::int64_t b = 0; b < batch; ++b) {
    inner.problem = share.varlen ? share : batch_entry(share, b);
    Parts of_inner(inner);
    for (const Piece& piece : call.heads_plan.pieces(0)) {
      Problem part = of_inner.whole_problem(piece);
      part.part->placement->sequence_begin = (piece.rows.sequence + b) * call.plan.num_ranks() + call.plan.rank();
      parts.push_back(part);
    }
  }
  return parts;
}

/// Returns the problems to run. If there are no rows or no keys, there is no problem, and the outputs keep the values
/// with which they were filled.
std::vector<Problem> problems_of(const Call& call, const Problem& share) {
  if (share.q.numel() == 0 || share.k.numel() == 0) return {};
  if (share.dropout_p > 0) return sequences_of(call, share);
  return {share};
}

void run(Engine& engine, const Call& call, const Problem& share) {
  const TimedSpan span(engine.timeline(), Activity::kCompute, 1, engine.stream());
  for (const Problem& part : problems_of(call, share)) engine.run(part);
}

}  // namespace

std::vector<Problem> problems_of_heads(const Call& call) {
  return problems_of(call, share_without_memory(call).problem);
}

void heads_forward(Engine& engine, const Call& call, const Tensor& o, const Tensor* lse) {
  const MakeTensor make = [&](DType dtype, const Shape& shape) { return engine.tensor(dtype, shape); };
  const Share share = forward_share(call, make, o, lse);
  HeadExchange exchange(engine, HeadLayout(call), share.in, share.out);
  exchange.to_heads();
  engine.fill(share.problem.o, 0);  // value of rows for which no problem computes a result
  if (share.problem.lse) engine.fill(*share.problem.lse, -std::numeric_limits<float>::infinity());
  run(engine, call, share.problem);
  exchange.to_rows();
  engine.finish();
}

void heads_backward(Engine& engine, const Call& call, const Tensor* deltas) {
  const MakeTensor make = [&](DType dtype, const Shape& shape) { return engine.tensor(dtype, shape); };
  const Share share = backward_share(call, make, deltas);
  HeadExchange exchange(engine, HeadLayout(call), share.in, share.out);
  exchange.to_heads();
  // Gradients of rows and keys for which no problem computes a result stay 0.
  for (const Dealt& gradient : share.out) engine.fill(gradient.heads, 0);
  run(engine, call, share.problem);
  exchange.to_rows();
  engine.finish();
}

}  // namespace attend::ring
