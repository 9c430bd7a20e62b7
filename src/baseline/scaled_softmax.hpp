// The fused softmax between two batched products, a baseline for the benchmarks (kernels/baseline/).
#pragma once

#include <cstdint>

#include "attend/tensor.hpp"
#include "cuda/driver/device.hpp"
#include "cuda/driver/driver_types.hpp"
#include "cuda/jit/kernel_spec.hpp"

namespace attend::cuda {

/// Arguments of one call. Matrices are (num_matrices, seqlen_q, seqlen_k), dense, on one device.
struct ScaledSoftmax {
  DType dtype = DType::kBF16;  ///< kF16 or kBF16, for all matrices
  const void* in = nullptr;    ///< scores; backward: dp
  const void* p = nullptr;     ///< backward: p from forward; null: forward
  void* out = nullptr;         ///< p; backward: ds, which may be `in`
  std::int64_t num_matrices = 1, seqlen_q = 1;
  std::int64_t seqlen_k = 8;  ///< a multiple of 8, at most 16384
  float scale = 1;
  bool causal = false;  ///< row i sees keys up to i + seqlen_k - seqlen_q
};

/// Returns the spec of the kernel for a call.
/// @throws Error (kUnsupported) for a dtype, length or address that the kernel does not support.
[[nodiscard]] KernelSpec scaled_softmax_spec(const ScaledSoftmax& call, const Arch& arch);

/// Queues the kernel on `stream`. The device's context must be current. @throws Error as scaled_softmax_spec() does.
void scaled_softmax(const ScaledSoftmax& call, int device, StreamHandle stream);

}  // namespace attend::cuda
