// Copies, conversions and sums of tensors on a GPU, for rings. Want the device's context current.
#pragma once

#include <span>
#include <vector>

#include "attend/tensor.hpp"
#include "cuda/driver/driver_types.hpp"
#include "cuda/jit/kernel_spec.hpp"

namespace attend::cuda {

/// to = from on the stream, each element rounded once. One shape, any strides whose last is 1; f32, f16, bf16.
void convert_rows(const Tensor& to, const Tensor& from, StreamHandle stream);

/// to += from on the stream; both f32.
void add_rows(const Tensor& to, const Tensor& from, StreamHandle stream);

/// to = a + b on the stream, each element rounded once; a and b f32. to may be b.
void store_sum_of_rows(const Tensor& to, const Tensor& a, const Tensor& b, StreamHandle stream);

/// Every kernel of these, for `attend compile` and the tests.
[[nodiscard]] std::vector<KernelSpec> ring_rows_specs(const char* arch);

}  // namespace attend::cuda
