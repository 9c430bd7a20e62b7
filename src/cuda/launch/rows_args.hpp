// Kernel arguments for a tensor whose element type the kernel reads at run time. The merge and serving kernels have
// such arguments.
#pragma once

#include "core/problem.hpp"
#include "kernels/serving/rows_args.cuh"

namespace attend::cuda {

/// Converts a dtype to the element type that the kernel reads. @throws Error (kInternal) if these kernels do not
/// support the dtype.
[[nodiscard]] StoredElement stored_element(DType dtype);

[[nodiscard]] RowsArgs rows_args(const Tensor& t);

}  // namespace attend::cuda
