// The forward ring: keys and values go round, the rank's rows merge what they see of each block.
#include "ring/forward.hpp"

#include "cuda/driver/device.hpp"
#include "ring/device_pass.hpp"
#include "ring/gather.hpp"
#include "ring/heads.hpp"
#include "ring/two_level.hpp"

namespace attend {
namespace ring {
namespace {

void exchange_forward(Transport& transport, const Call& call, Engine& engine) {
  Parts parts(call);
  engine.begin_rows();
  for_each_step(transport, call, [&](int step, const Block* keys) {
    if (keys == nullptr) return;
    const TimedSpan span(transport.timeline(), Activity::kCompute, step);
    for (const Piece& piece : call.plan.pieces(call.plan.owner(step))) {
      engine.add_forward(piece, parts.problem(piece, keys->first(), keys->second()));
    }
  });
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

}  // namespace ring

void ring_forward(const RingContext& context, const ConstTensor& q, const ConstTensor& k, const ConstTensor& v,
                  const Tensor& o, const Tensor* lse, const Params& params, const RingParams& ring_params,
                  Stream stream) {
  ring::Transport& transport = context.transport();
  ring::Arguments arguments = {
      "ring_forward", ring_params, core::input_view(q), core::input_view(k), core::input_view(v), o, {}, params};
  if (lse != nullptr) arguments.lse = *lse;
  const ring::Call call = ring::agree_on(transport, arguments, stream);
  ring::guarded(transport, [&] {
    if (q.device.type == DeviceType::kCPU) return ring::forward_on_host(transport, call, o, lse);
    const cuda::ContextGuard guard(q.device.index);
    ring::forward_on_device(transport, call, static_cast<cuda::StreamHandle>(stream));
  });
}

}  // namespace attend
