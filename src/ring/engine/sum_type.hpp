// The type in which a ring adds partial results on the host.
#pragma once

#include <string>

#include "attend/error.hpp"
#include "attend/tensor.hpp"

namespace attend::ring {

/// Calls visit() with a 0 whose C++ type is that of the sums: double for f64, float for f32.
/// @throws Error (kInternal) for other dtypes, because partial results are always f32 or f64.
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
