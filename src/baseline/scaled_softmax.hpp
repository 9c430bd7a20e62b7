// The fused softmax between two batched products, a baseline of the measuring tools (kernels/baseline/).
#pragma once

#include <cstdint>

#include "attend/tensor.hpp"
#include "cuda/driver/device.hpp"
#include "cuda/driver/driver_types.hpp"
#include "cuda/jit/kernel_spec.hpp"

namespace attend::cuda {

/// One call. Matrices (num_matrices, seqlen_q, seqlen_k), dense, on one device.
struct ScaledSoftmax {
  DType dtype = DType::kBF16;  ///< kF16 or kBF16, of all matrices
  const void* in = nullptr;    ///< scores; backward: dp
  const void* p = nullptr;     ///< backward: what forward gave; null: forward
  void* out = nullptr;         ///< p; backward: ds, which may be `in`
  std::int64_t num_matrices = 1, seqlen_q = 1;
  std::int64_t seqlen_k = 8;  ///< a multiple of 8, at most 16384
  float scale = 1;
  bool causal = false;  ///< row i sees keys up to i + seqlen_k - seqlen_q
};

/// What to compile for it.
/// @throws Error (kUnsupported) for a dtype, length or address that the kernel does not take.
[[nodiscard]] KernelSpec scaled_softmax_spec(const ScaledSoftmax& call, const Arch& arch);

/// Puts the kernel on `stream`. The device's context has to be current. @throws Error as scaled_softmax_spec() does.
void scaled_softmax(const ScaledSoftmax& call, int device, StreamHandle stream);

}  // namespace attend::cuda
