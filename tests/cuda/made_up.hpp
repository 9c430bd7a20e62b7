// Problems and device descriptions for tests of kernel families without a GPU.
#pragma once

#include <cstdlib>
#include <utility>
#include <vector>

#include "cuda/launch/family.hpp"

namespace attend::test {

/// Runs before the first use of the driver. In the fake driver, device 0 has compute capability 9.0 and 132
/// multiprocessors. Device 1 has a compute capability that is missing from the library's table.
inline const int set_up = ::setenv("ATTEND_LIBCUDA_PATH", ATTEND_FAKE_LIBCUDA, 1);

struct Sizes {
  std::int64_t batch = 2, heads = 8, heads_kv = 8, seqlen_q = 1000, seqlen_k = 1000, head_dim = 64, head_dim_v = 64;
};

/// A problem whose tensors have addresses but no memory behind them. Tests must not launch it.
class MadeUp {
 public:
  explicit MadeUp(DType dtype, const Sizes& s = {}, Params params = {}, bool backward = false, int device = 0,
                  std::uintptr_t skew = 0)
      : device_(device), skew_(skew) {
    const Shape q_shape = {s.batch, s.heads, s.seqlen_q, s.head_dim},
                k_shape = {s.batch, s.heads_kv, s.seqlen_k, s.head_dim};
    const Shape v_shape = {s.batch, s.heads_kv, s.seqlen_k, s.head_dim_v};
    const Shape o_shape = {s.batch, s.heads, s.seqlen_q, s.head_dim_v};
    const Tensor q = tensor(dtype, q_shape), k = tensor(dtype, k_shape), v = tensor(dtype, v_shape);
    const Tensor o = tensor(dtype, o_shape), lse = tensor(DType::kF32, {s.batch, s.heads, s.seqlen_q, 1});
    const Shape scores = {1, 1, s.seqlen_q, s.seqlen_k};
    if (params.bias) params.bias = tensor(params.bias->dtype, scores);
    if (params.mask) params.mask = tensor(DType::kBool, scores);
    if (params.alibi_slopes) params.alibi_slopes = tensor(DType::kF32, {1, s.heads, 1, 1});
    if (params.sinks) params.sinks = tensor(params.sinks->dtype, {1, s.heads, 1, 1});
    if (!backward) {
      problem = core::make_forward_problem(q, k, v, o, &lse, params);
      return;
    }
    BackwardExtras extras;
    if (params.bias) extras.dbias = tensor(params.bias->dtype, scores);
    if (params.sinks) extras.dsinks = tensor(params.sinks->dtype, params.sinks->shape);
    problem = core::make_backward_problem(tensor(dtype, o_shape), q, k, v, o, lse, tensor(dtype, q_shape),
                                          tensor(dtype, k_shape), tensor(dtype, v_shape), params, extras);
  }
  core::Problem problem;

 private:
  Tensor tensor(DType dtype, const Shape& shape) {
    next_ += std::uintptr_t{1} << 40;
    return {.data = reinterpret_cast<void*>(next_ + skew_),
            .dtype = dtype,
            .device = {DeviceType::kCUDA, device_},
            .shape = shape,
            .stride = contiguous_strides(shape)};
  }
  int device_;
  std::uintptr_t next_ = 0, skew_ = 0;
};

inline cuda::DeviceInfo device(const char* arch, int multiprocessors) {
  const cuda::Arch& a = cuda::find_arch(arch);
  return {.index = 0,
          .name = arch,
          .major = a.major,
          .minor = a.minor,
          .num_multiprocessors = multiprocessors,
          .max_smem_per_block = a.max_smem_per_block};
}

inline std::vector<cuda::DeviceInfo> devices() {
  return {device("sm_70", 80),  device("sm_75", 40),   device("sm_80", 108),  device("sm_86", 28),
          device("sm_89", 128), device("sm_90a", 132), device("sm_120", 170), device("sm_90a", 1)};
}

/// Returns problems that together select every tile.
inline std::vector<MadeUp> problems(bool backward) {
  std::vector<MadeUp> list;
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const std::int64_t head_dim : {8, 64, 96, 128, 200, 512}) {
      for (const std::int64_t seqlen : {1, 40, 1000, 100000}) {
        for (const bool causal : {false, true}) {
          const Sizes sizes = {.seqlen_q = seqlen, .seqlen_k = seqlen, .head_dim = head_dim, .head_dim_v = head_dim};
          list.emplace_back(dtype, sizes, Params{.causal = causal}, backward);
          list.emplace_back(dtype, sizes, Params{.scale = -0.5, .softcap = 3, .dropout_p = 0.1}, backward);
          list.emplace_back(dtype, sizes, Params{.causal = causal, .sinks = Tensor{.dtype = DType::kF32}}, backward);
          list.emplace_back(dtype, sizes, Params{.causal = causal, .mask = Tensor{.dtype = DType::kBool}}, backward);
          list.emplace_back(dtype, sizes, Params{.window_left = 5, .bias = Tensor{.dtype = DType::kF16}}, backward, 0,
                            4);
        }
      }
    }
  }
  return list;
}

}  // namespace attend::test
