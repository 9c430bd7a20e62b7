#include "ring/algorithms/host_pass.hpp"

#include <algorithm>
#include <cmath>

#include "core/dtype_traits.hpp"
#include "core/elements.hpp"
#include "cpu/parallel.hpp"
#include "ring/algorithms/gather.hpp"
#include "ring/algorithms/heads.hpp"
#include "ring/algorithms/host_exchange.hpp"
#include "ring/algorithms/two_level.hpp"
#include "ring/engine/block.hpp"

namespace attend::ring {
namespace {

/// Returns whether a row of `rounded`, a 16-bit tensor, differs from the same row of `exact` by at most two rounding
/// errors. Two are allowed because `rounded` may be the result of sums in another order.
bool rounds_to(const Tensor& exact, const Tensor& rounded, std::int64_t batch, std::int64_t head, std::int64_t row) {
  // Relative distance between neighbouring numbers of the 16-bit type.
  const double spacing = 2 * core::dtype_traits(rounded.dtype).unit_roundoff;
  const double subnormal = std::max(0x1p-24, spacing * core::dtype_traits(rounded.dtype).smallest_normal);
  for (std::int64_t c = 0; c < rounded.shape[3]; ++c) {
    const double o = core::load(rounded, batch, head, row, c);
    const double difference = std::abs(core::load(exact, batch, head, row, c) - o);
    if (!(difference <= spacing * std::abs(o) + subnormal)) return false;
  }
  return true;
}

/// Recomputes o in partial_dtype. This is needed with dropout: the terms of a row's gradients may cancel, and the error
/// from rounding o to 16 bits may then be larger than the gradients. If a recomputed row differs from the given row by
/// more than rounding errors, the given values are kept, because they may include keys outside the ring.
Block exact_o(Transport& transport, const Call& call) {
  const Tensor& given = call.problem.o;
  Block exact(call.partial_dtype, given.shape);
  Call forward = call;
  forward.problem.is_backward = false;
  forward_on_host(transport, forward, exact.first(), nullptr);
  cpu::parallel_for(given.shape[0] * given.shape[1], cpu::max_threads(), [&](std::int64_t index) {
    const std::int64_t batch = index / given.shape[1];
    const std::int64_t head = index % given.shape[1];
    for (std::int64_t row = 0; row < given.shape[2]; ++row) {
      if (rounds_to(exact.first(), given, batch, head, row)) continue;
      for (std::int64_t c = 0; c < given.shape[3]; ++c) {
        core::store(exact.first(), batch, head, row, c, core::load(given, batch, head, row, c));
      }
    }
  });
  return exact;
}

/// Returns delta = <dout, o> - dlse for each of the rank's rows.
Block deltas_of(const Call& call, const Tensor& o) {
  const core::Problem& p = call.problem;
  const Shape& shape = o.shape;
  Block deltas(call.partial_dtype, {shape[0], shape[1], shape[2], 1});
  cpu::parallel_for(shape[0] * shape[1], cpu::max_threads(), [&](std::int64_t index) {
    const std::int64_t batch = index / shape[1];
    const std::int64_t head = index % shape[1];
    for (std::int64_t row = 0; row < shape[2]; ++row) {
      double delta = p.dlse ? -core::load(*p.dlse, batch, head, row, 0) : 0.0;
      for (std::int64_t c = 0; c < shape[3]; ++c) {
        delta += core::load(p.dout, batch, head, row, c) * core::load(o, batch, head, row, c);
      }
      core::store(deltas.first(), batch, head, row, 0, delta);
    }
  });
  return deltas;
}

}  // namespace

void forward_on_host(Transport& transport, const Call& call, const Tensor& o, const Tensor* lse) {
  const std::unique_ptr<Engine> engine = make_host_engine(transport, call);
  switch (call.algorithm) {
    case RingAlgorithm::kAllGather:
      return gather_forward(*engine, call, o, lse);
    case RingAlgorithm::kAllToAll:
      return heads_forward(*engine, call, o, lse);
    case RingAlgorithm::kTwoLevel:
      return two_level_forward(transport, *engine, call, o, lse, [](Transport& groups, const Call& inner) {
        forward_on_host(groups, inner, inner.problem.o, inner.problem.lse ? &*inner.problem.lse : nullptr);
      });
    default:
      exchange_forward(transport, call, *engine);
      engine->store_rows(o, lse);
  }
}

void backward_on_host(Transport& transport, const Call& call) {
  const core::Problem& p = call.problem;
  Block o;
  // This condition must have the same value on every rank, because all ranks must take part in the forward pass.
  const bool coarse = core::is_narrow(p.o.dtype) && p.dropout_p > 0;
  if (coarse) o = exact_o(transport, call);
  const Block deltas = deltas_of(call, coarse ? o.first() : p.o);
  const std::unique_ptr<Engine> engine = make_host_engine(transport, call, &deltas.first());
  switch (call.algorithm) {
    case RingAlgorithm::kAllGather:
      return gather_backward(*engine, call);
    case RingAlgorithm::kAllToAll:
      return heads_backward(*engine, call, &deltas.first());
    case RingAlgorithm::kTwoLevel:
      return two_level_backward(transport, *engine, call, &deltas.first(), [](Transport& groups, const Call& inner) {
        exchange_backward(groups, inner, *make_host_engine(groups, inner, inner.problem.delta()));
      });
    default:
      return exchange_backward(transport, call, *engine);
  }
}

}  // namespace attend::ring
