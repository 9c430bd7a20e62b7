// The forward ring: keys and values go round, the rank's rows merge what they see of each block.
#include "ring/forward.hpp"

#include "cuda/driver/device.hpp"
#include "ring/device_pass.hpp"

namespace attend {
namespace ring {

MergedRows forward_pass(Transport& transport, const Call& call) {
  MergedRows merged(call.problem.o.shape);
  Parts parts(call);
  for_each_step(transport, call, [&](int step, const Block* keys) {
    if (keys == nullptr) return;
    for (const Piece& piece : call.plan.pieces(call.plan.owner(step))) {
      core::Problem part = parts.problem(piece, keys->first(), keys->second());
      const Shape& shape = part.o.shape;
      const Block o(call.partial_dtype, shape);
      const Block lse(DType::kF64, {shape[0], shape[1], shape[2], 1});
      part.o = o.first();
      part.lse = lse.first();
      call.backend->forward(part, nullptr);
      merged.add(piece.rows.local_begin, part.o, *part.lse);
    }
  });
  return merged;
}

}  // namespace ring

void ring_forward(const RingContext& context, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& o,
                  const Tensor* lse, const Params& params, Sharding sharding, Stream stream) {
  ring::Transport& transport = context.transport();
  ring::Arguments arguments = {"ring_forward", sharding, q, k, v, o, {}, params};
  if (lse != nullptr) arguments.lse = *lse;
  const ring::Call call = ring::agree_on(transport, arguments, stream);
  ring::guarded(transport, [&] {
    if (q.device.type == DeviceType::kCPU) return ring::forward_pass(transport, call).store(o, lse);
    const cuda::ContextGuard guard(q.device.index);
    ring::forward_on_device(transport, call, static_cast<cuda::StreamHandle>(stream));
  });
}

}  // namespace attend
