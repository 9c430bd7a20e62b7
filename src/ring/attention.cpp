// ring_forward and ring_backward: the ranks agree on the call, and each runs its pass on the tensors' device.
#include "attend/ring.hpp"
#include "core/problem.hpp"
#include "cuda/driver/device.hpp"
#include "ring/agreed_call.hpp"
#include "ring/algorithms/device_pass.hpp"
#include "ring/algorithms/host_pass.hpp"
#include "ring/transport/guarded.hpp"

namespace attend {

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

void ring_backward(const RingContext& context, const ConstTensor& dout, const ConstTensor& q, const ConstTensor& k,
                   const ConstTensor& v, const ConstTensor& o, const ConstTensor& lse, const Tensor& dq,
                   const Tensor& dk, const Tensor& dv, const Params& params, const RingParams& ring_params,
                   Stream stream, const BackwardExtras& extras) {
  ring::Transport& transport = context.transport();
  const ring::Arguments arguments = {"ring_backward",
                                     ring_params,
                                     core::input_view(q),
                                     core::input_view(k),
                                     core::input_view(v),
                                     core::input_view(o),
                                     core::input_view(lse),
                                     params,
                                     {{core::input_view(dout), dq, dk, dv, extras}}};
  const ring::Call call = ring::agree_on(transport, arguments, stream);
  ring::guarded(transport, [&] {
    if (q.device.type == DeviceType::kCPU) return ring::backward_on_host(transport, call);
    const cuda::ContextGuard guard(q.device.index);
    ring::backward_on_device(transport, call, static_cast<cuda::StreamHandle>(stream));
  });
}

}  // namespace attend
