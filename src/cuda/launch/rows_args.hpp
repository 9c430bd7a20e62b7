// A tensor whose type a kernel learns at run time: of merges and of serving.
#pragma once

#include "core/problem.hpp"
#include "kernels/serving/rows_args.cuh"

namespace attend::cuda {

/// @throws Error (kInternal) for a type that no tensor of these kernels may have.
[[nodiscard]] StoredElement stored_element(DType dtype);

[[nodiscard]] RowsArgs rows_args(const Tensor& t);

}  // namespace attend::cuda
