// Types in which a ring sums partial results on the host.
#pragma once

#include <string>

#include "attend/error.hpp"
#include "attend/tensor.hpp"

namespace attend::ring {

/// Calls visit with a zero of the sum type of this dtype: a double for f64, a float for f32.
/// @throws Error (kInternal) for other dtypes, to which results are rounded only at the end.
template <class Visit>
void with_sum_type(DType dtype, const Visit& visit) {
  switch (dtype) {
    case DType::kF32:
      return visit(float{});
    case DType::kF64:
      return visit(double{});
    case DType::kF16:
    case DType::kBF16:
    case DType::kBool:
    case DType::kF8E4M3:
    case DType::kI8:
    case DType::kI32:
    case DType::kI64:
      break;
  }
  throw Error(ErrorCode::kInternal, std::string("a ring's sums: dtype ") + dtype_name(dtype) + ", allowed f32, f64");
}

}  // namespace attend::ring
