// A fused softmax that runs between two batched matrix products. It is a baseline for the benchmarks
// (kernels/baseline/).
#pragma once

#include <cstdint>

#include "attend/tensor.hpp"
#include "cuda/driver/device.hpp"
#include "cuda/driver/driver_types.hpp"
#include "cuda/jit/kernel_spec.hpp"

namespace attend::cuda {

/// Arguments of one call. All matrices are dense, on one device, and have the shape (num_matrices, seqlen_q, seqlen_k).
struct ScaledSoftmax {
  DType dtype = DType::kBF16;  ///< dtype of all matrices, kF16 or kBF16
  const void* in = nullptr;    ///< the scores in forward; the gradient dp in backward
  const void* p = nullptr;     ///< the p that forward has written, used only by backward; null in forward
  void* out = nullptr;         ///< output: p in forward; ds in backward, which may be `in`
  std::int64_t num_matrices = 1, seqlen_q = 1;
  std::int64_t seqlen_k = 8;  ///< a multiple of 8, at most 16384
  float scale = 1;
  bool causal = false;  ///< if true, row i sees keys up to i + seqlen_k - seqlen_q
};

/// Returns the spec of the kernel for a call.
/// @throws Error (kUnsupported) if the kernel does not support a dtype, a length or an address.
[[nodiscard]] KernelSpec scaled_softmax_spec(const ScaledSoftmax& call, const Arch& arch);

/// Queues the kernel on `stream`. The device's context must be current. @throws Error if
/// scaled_softmax_spec() would.
void scaled_softmax(const ScaledSoftmax& call, int device, StreamHandle stream);

}  // namespace attend::cuda
