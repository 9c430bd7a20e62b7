// The library with a C face, so that bench/cpu_vs_torch.py and bench/gpu_vs_torch.py can call it through ctypes. Dense
// BHSD tensors only.
#include <cstdint>
#include <string>

#include "attend/attention.hpp"

namespace {

/// Mirrors the ctypes structure in torch_shim.py field by field.
struct Call {
  void *q, *k, *v, *o, *lse, *dout, *dq, *dk, *dv;
  std::int64_t batch, num_heads, seqlen_q, seqlen_k, head_dim;
  void* stream;         // of a GPU
  const char* compute;  // a backend's name
  std::int32_t dtype;   // 0 f32, 1 f16, 2 bf16
  std::int32_t causal;  // bottom right, which is torch's top left where seqlen_q == seqlen_k
  std::int32_t device;  // index of a GPU; -1: the CPU
};

/// Runs `work`; null, or the message of what went wrong, valid until the thread's next call.
template <class Work>
const char* message_of(Work work) noexcept {
  thread_local std::string message;
  try {
    work();
    return nullptr;
  } catch (const std::exception& error) {
    message = error.what();
    return message.c_str();
  }
}

struct Views {
  explicit Views(const Call& c)
      : dtype(c.dtype == 0   ? attend::DType::kF32
              : c.dtype == 1 ? attend::DType::kF16
                             : attend::DType::kBF16),
        device(c.device < 0 ? attend::Device{} : attend::Device{attend::DeviceType::kCUDA, c.device}),
        q_shape{c.batch, c.num_heads, c.seqlen_q, c.head_dim},
        k_shape{c.batch, c.num_heads, c.seqlen_k, c.head_dim},
        lse(attend::Tensor::bhsd(c.lse, attend::DType::kF32, {c.batch, c.num_heads, c.seqlen_q, 1}, device)),
        params{.causal = c.causal != 0, .compute = c.compute} {}
  [[nodiscard]] attend::Tensor q_like(void* data) const { return attend::Tensor::bhsd(data, dtype, q_shape, device); }
  [[nodiscard]] attend::Tensor k_like(void* data) const { return attend::Tensor::bhsd(data, dtype, k_shape, device); }

  attend::DType dtype;
  attend::Device device;
  attend::Shape q_shape;
  attend::Shape k_shape;
  attend::Tensor lse;
  attend::Params params;
};

}  // namespace

extern "C" {

ATTEND_API const char* shim_forward(const Call* c) {
  return message_of([&] {
    const Views view(*c);
    attend::forward(view.q_like(c->q), view.k_like(c->k), view.k_like(c->v), view.q_like(c->o),
                    c->lse == nullptr ? nullptr : &view.lse, view.params, c->stream);
  });
}

ATTEND_API const char* shim_backward(const Call* c) {
  return message_of([&] {
    const Views view(*c);
    attend::backward(view.q_like(c->dout), view.q_like(c->q), view.k_like(c->k), view.k_like(c->v), view.q_like(c->o),
                     view.lse, view.q_like(c->dq), view.k_like(c->dk), view.k_like(c->dv), view.params, c->stream);
  });
}

ATTEND_API int shim_threads() {
  return attend::cpu_threads();
}

ATTEND_API const char* shim_simd_target() {
  static const std::string name = attend::cpu_simd_target();
  return name.c_str();
}

ATTEND_API const char* shim_version() {
  return attend::version();
}
}
