// A C interface to the library. bench/cpu_vs_torch.py and bench/gpu_vs_torch.py call it through ctypes. It supports
// only dense (batch, heads, seqlen, head_dim) tensors.
#include <cstdint>
#include <string>

#include "attend/attention.hpp"

namespace {

/// Arguments of a call. The fields match those of the ctypes structure in torch_shim.py.
struct Call {
  void *q, *k, *v, *o, *lse, *dout, *dq, *dk, *dv;
  std::int64_t batch, num_heads, seqlen_q, seqlen_k, head_dim;
  void* stream;         // stream of a GPU
  const char* compute;  // name of a backend
  std::int32_t dtype;   // 0 for f32, 1 for f16, 2 for bf16
  std::int32_t causal;  // if not 0, causal, aligned bottom right; same as torch if seqlen_q == seqlen_k
  std::int32_t device;  // index of the GPU, or -1 for the CPU
};

/// Runs `work`. Returns null, or the error message if `work` throws. The message is valid until the thread's next call.
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
