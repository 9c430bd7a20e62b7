// Views of tensors that DLPack describes. These functions support only the tensors that most models pass. The functions
// here are faster than the functions of array.hpp, because they create no strings for the argument's name and dtype.
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

/// Returns whether the tensor has four dimensions, a contiguous last dimension, and a dtype that GPUs support.
[[nodiscard]] bool is_dense_4d(const nb::dlpack::dltensor& x);

/// Returns the view of a tensor for which is_dense_4d() returns true.
[[nodiscard]] Tensor heads_of(const nb::dlpack::dltensor& x, Layout layout);

/// Returns the views of q, k and v in a tensor with the shape (batch, seqlen, 3, heads, head_dim). Returns nothing if
/// the tensor has another shape, an unsupported dtype, or a last dimension that is not contiguous.
[[nodiscard]] std::optional<std::array<Tensor, 3>> parts_of(const nb::dlpack::dltensor& qkv);

/// Returns the view of lse or of its gradient. Returns nothing unless the tensor has the shape (batch, heads, seqlen_q)
/// and the dtype float32.
[[nodiscard]] std::optional<Tensor> rows_of(const nb::dlpack::dltensor& x);

}  // namespace attend::python
