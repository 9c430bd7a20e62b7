// The library's views of tensors that DLPack describes, without a name or a text on the way: nothing where a tensor is
// not what most calls take.
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

/// Four dimensions, the last one dense, of elements that GPUs take; not empty.
[[nodiscard]] bool is_usual(const nb::dlpack::dltensor& x);

/// Of a usual tensor.
[[nodiscard]] Tensor heads_of(const nb::dlpack::dltensor& x, Layout layout);

/// q, k and v in one tensor (batch, seqlen, 3, heads, head_dim), the last dimension dense.
[[nodiscard]] std::optional<std::array<Tensor, 3>> parts_of(const nb::dlpack::dltensor& qkv);

/// lse or its gradient, (batch, heads, seqlen_q); nothing where it is none that forward gives.
[[nodiscard]] std::optional<Tensor> rows_of(const nb::dlpack::dltensor& x);

}  // namespace attend::python
