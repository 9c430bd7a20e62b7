// A tensor whose element type the kernel reads at run time. Merge and serving kernels use it.
#pragma once

#include "core/problem.hpp"
#include "kernels/serving/rows_args.cuh"

namespace attend::cuda {

/// @throws Error (kInternal) for a type that these kernels do not support.
[[nodiscard]] StoredElement stored_element(DType dtype);

[[nodiscard]] RowsArgs rows_args(const Tensor& t);

}  // namespace attend::cuda
