// Copies, conversions and sums of GPU tensors, for rings. The device's context must be current.
#pragma once

#include <span>
#include <vector>

#include "attend/tensor.hpp"
#include "cuda/driver/driver_types.hpp"
#include "cuda/jit/kernel_spec.hpp"

namespace attend::cuda {

/// Queues to = from on the stream, each element rounded once. Equal shapes, any strides with last stride 1; f32, f16,
/// bf16.
void convert_rows(const Tensor& to, const Tensor& from, StreamHandle stream);

/// Queues to += from on the stream; both f32.
void add_rows(const Tensor& to, const Tensor& from, StreamHandle stream);

/// Queues to = a + b on the stream, each element rounded once; a and b are f32. to may be b.
void store_sum_of_rows(const Tensor& to, const Tensor& a, const Tensor& b, StreamHandle stream);

/// Returns the specs of all kernels of these functions, for `attend compile` and the tests.
[[nodiscard]] std::vector<KernelSpec> ring_rows_specs(const char* arch);

}  // namespace attend::cuda
