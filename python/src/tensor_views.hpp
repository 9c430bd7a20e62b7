// The library's views of tensors that DLPack describes, for the calls that most models make. They are quicker to make
// than those of array.hpp: no name of the argument, no dtype as text.
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

/// Has it four dimensions, the last one dense, and elements, of a dtype that GPUs take?
[[nodiscard]] bool is_dense_4d(const nb::dlpack::dltensor& x);

/// The view of a tensor that is_dense_4d.
[[nodiscard]] Tensor heads_of(const nb::dlpack::dltensor& x, Layout layout);

/// The views of q, k and v in one tensor (batch, seqlen, 3, heads, head_dim), the last dimension dense. Nothing if the
/// tensor is another one.
[[nodiscard]] std::optional<std::array<Tensor, 3>> parts_of(const nb::dlpack::dltensor& qkv);

/// The view of lse or its gradient, f32 (batch, heads, seqlen_q). Nothing if the tensor is another one.
[[nodiscard]] std::optional<Tensor> rows_of(const nb::dlpack::dltensor& x);

}  // namespace attend::python
