// Copies, converts and adds GPU tensors for rings. The device's context must be current.
#pragma once

#include <span>
#include <vector>

#include "attend/tensor.hpp"
#include "cuda/driver/driver_types.hpp"
#include "cuda/jit/kernel_spec.hpp"

namespace attend::cuda {

/// Queues to = from on the stream. Each element is rounded once. The tensors have equal shapes, types f32, f16 or bf16,
/// and any strides whose last is 1.
void convert_rows(const Tensor& to, const Tensor& from, StreamHandle stream);

/// Queues to += from on the stream. Both tensors are f32.
void add_rows(const Tensor& to, const Tensor& from, StreamHandle stream);

/// Queues to = a + b on the stream. Each element is rounded once. `a` and `b` are f32, and `to` may be the tensor `b`.
void store_sum_of_rows(const Tensor& to, const Tensor& a, const Tensor& b, StreamHandle stream);

/// Returns the specs of all kernels that these functions use. `attend compile` and the tests read them.
[[nodiscard]] std::vector<KernelSpec> ring_rows_specs(const char* arch);

}  // namespace attend::cuda
