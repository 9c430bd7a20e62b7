// Views of tensors described by DLPack, for the calls of most models. They are faster than the views of array.hpp,
// because they need neither an argument name nor a dtype string.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <array>
#include <optional>

#include "array.hpp"

namespace attend::python {

namespace nb = nanobind;

[[nodiscard]] bool is_on_gpu(const nb::dlpack::dltensor& x);

[[nodiscard]] bool is_float(const nb::dlpack::dltensor& x, int bits);

/// Returns whether the tensor has four dimensions, a contiguous last dimension, and elements of a dtype that GPUs
/// support.
[[nodiscard]] bool is_dense_4d(const nb::dlpack::dltensor& x);

/// Returns the view of a tensor for which is_dense_4d() is true.
[[nodiscard]] Tensor heads_of(const nb::dlpack::dltensor& x, Layout layout);

/// Returns the views of q, k and v in a tensor (batch, seqlen, 3, heads, head_dim) whose last dimension is contiguous.
/// Returns nothing for any other tensor.
[[nodiscard]] std::optional<std::array<Tensor, 3>> parts_of(const nb::dlpack::dltensor& qkv);

/// Returns the view of lse or its gradient, f32 (batch, heads, seqlen_q). Returns nothing for any other tensor.
[[nodiscard]] std::optional<Tensor> rows_of(const nb::dlpack::dltensor& x);

}  // namespace attend::python
