#include "ring/algorithms/device_pass.hpp"

#include <vector>

#include "dispatch/dispatch.hpp"
#include "ring/algorithms/device_exchange.hpp"
#include "ring/algorithms/gather.hpp"
#include "ring/algorithms/heads.hpp"
#include "ring/algorithms/two_level.hpp"
#include "ring/engine/parts.hpp"
#include "ring/plan/groups.hpp"

namespace attend::ring {
namespace {

using core::Problem;
using cuda::StreamHandle;

Tensor nowhere(const Shape& shape, Device device) {
  return Tensor::bhsd<void>(nullptr, DType::kF32, shape, device);
}

}  // namespace

void check_pieces(const Call& call) {
  const Problem& p = call.problem;
  if (call.algorithm == RingAlgorithm::kAllToAll) {
    for (const Problem& part : problems_of_heads(call)) (void)dispatch::choose(call.compute, part);
    return;
  }
  if (call.algorithm == RingAlgorithm::kTwoLevel) return check_pieces(call_between_groups(call));
  const Device device = p.q.device;
  Parts parts(call);
  const auto check = [&](const std::vector<Piece>& pieces, const Pair& keys, const Pair& gradients) {
    for (const Piece& piece : pieces) {
      Problem part = parts.problem(piece, keys.first, keys.second);
      prepare_adding(part, call, piece);
      const auto rows = [&](const Shape& shape) {
        return rows_of(nowhere(shape, device), piece.rows.local_begin, piece.rows.length);
      };
      const Shape& o = p.o.shape;
      if (p.is_backward) {
        set_gradients(part, piece, rows(p.q.shape), gradients.first, gradients.second);
      } else {
        part.o = rows(o);
        part.lse = rows({o[0], o[1], o[2], 1});
      }
      (void)dispatch::choose(call.compute, part);
    }
  };
  if (call.algorithm == RingAlgorithm::kAllGather) {
    Shape k = p.k.shape, v = p.v.shape;
    k[2] = v[2] = call.plan.offsets_k().back();
    return check(call.plan.gathered_pieces(call.plan.rank()), Pair::of(p.k.dtype, k, p.v.dtype, v).at(nullptr, device),
                 Pair::of(call.partial_dtype, k, call.partial_dtype, v).at(nullptr, device));
  }
  for (int owner = 0; owner < call.plan.num_ranks(); ++owner) {
    const Pair keys = key_pair(call, owner).at(nullptr, device);
    const Pair gradients = gradient_pair(call, owner).at(nullptr, device);
    if (!p.is_backward || owner != call.plan.rank()) {
      check(call.plan.pieces(owner), keys, gradients);
      continue;
    }
    const OwnPieces own = call.plan.own_pieces(owner);
    check(own.first, keys, gradients);
    check(own.last, keys, gradients);
  }
}

void forward_on_device(Transport& transport, const Call& call, StreamHandle stream) {
  const Tensor* lse = call.problem.lse ? &*call.problem.lse : nullptr;
  const std::unique_ptr<Engine> engine = make_device_engine(transport, call, stream);
  if (call.algorithm == RingAlgorithm::kAllGather) return gather_forward(*engine, call, call.problem.o, lse);
  if (call.algorithm == RingAlgorithm::kAllToAll) return heads_forward(*engine, call, call.problem.o, lse);
  if (call.algorithm == RingAlgorithm::kTwoLevel) {
    return two_level_forward(transport, *engine, call, call.problem.o, lse,
                             [&](Transport& groups, const Call& inner) { forward_on_device(groups, inner, stream); });
  }
  exchange_forward_on_device(transport, call, *engine, stream);
}

void backward_on_device(Transport& transport, const Call& call, StreamHandle stream) {
  const std::unique_ptr<Engine> engine = make_device_engine(transport, call, stream);
  if (call.algorithm == RingAlgorithm::kAllGather) return gather_backward(*engine, call);
  if (call.algorithm == RingAlgorithm::kAllToAll) return heads_backward(*engine, call, nullptr);
  if (call.algorithm == RingAlgorithm::kTwoLevel) {
    return two_level_backward(transport, *engine, call, nullptr,
                              [&](Transport& groups, const Call& inner) { backward_on_device(groups, inner, stream); });
  }
  exchange_backward_on_device(transport, call, *engine, stream);
}

}  // namespace attend::ring
