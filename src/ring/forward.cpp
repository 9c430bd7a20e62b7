// The forward ring: keys and values go round, the rank's rows merge what they see of each block.
#include "ring/call.hpp"
#include "ring/merge.hpp"

namespace attend {
namespace {

using ring::Block;
using ring::Call;
using ring::Piece;

void run_forward(ring::Transport& transport, const Call& call) {
  const core::Problem& p = call.problem;
  ring::MergedRows merged(p.o.shape);
  ring::Parts parts(call);
  ring::for_each_step(transport, call, [&](int step, const Block* keys) {
    if (keys == nullptr) return;
    for (const Piece& piece : call.plan.pieces(call.plan.owner(step))) {
      core::Problem part = parts.problem(piece, *keys);
      const Block o(call.partial_dtype, part.o.shape);
      const Block lse(DType::kF64, {part.o.shape[0], part.o.shape[1], part.o.shape[2], 1});
      part.o = o.first();
      part.lse = lse.first();
      call.backend->forward(part, nullptr);
      merged.add(piece.rows.local_begin, part.o, *part.lse);
    }
  });
  merged.store(p.o, p.lse ? &*p.lse : nullptr);
}

}  // namespace

void ring_forward(const RingContext& context, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& o,
                  const Tensor* lse, const Params& params, Sharding sharding) {
  ring::Transport& transport = context.transport();
  ring::Arguments arguments = {"ring_forward", sharding, q, k, v, o, {}, params};
  if (lse != nullptr) arguments.lse = *lse;
  const Call call = ring::agree_on(transport, arguments);
  ring::guarded(transport, [&] { run_forward(transport, call); });
}

}  // namespace attend
