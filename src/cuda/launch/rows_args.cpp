#include "cuda/launch/rows_args.hpp"

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>

#include "attend/error.hpp"

namespace attend::cuda {

StoredElement stored_element(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return StoredElement::kF32;
    case DType::kF16:
      return StoredElement::kF16;
    case DType::kBF16:
      return StoredElement::kBF16;
    case DType::kF64:
      return StoredElement::kF64;
    case DType::kF8E4M3:
      return StoredElement::kF8E4M3;
    case DType::kI8:
      return StoredElement::kI8;
    case DType::kBool:
    case DType::kI32:
    case DType::kI64:
      break;
  }
  throw Error(ErrorCode::kInternal, fmt::format("no kernel supports rows of {}", dtype_name(dtype)));
}

RowsArgs rows_args(const Tensor& t) {
  const std::int64_t run_bytes = kRowRun * dtype_bytes(t.dtype);
  bool at_once = reinterpret_cast<std::uintptr_t>(t.data) % static_cast<std::uintptr_t>(run_bytes) == 0 &&
                 t.shape[3] % kRowRun == 0;
  for (std::size_t dim = 0; dim < 3; ++dim) at_once = at_once && (t.shape[dim] <= 1 || t.stride[dim] % kRowRun == 0);
  return {.data = t.data,
          .stride = core::strides_of(t),
          .element = static_cast<uint32>(stored_element(t.dtype)),
          .runs_at_once = at_once ? 1U : 0U};
}

}  // namespace attend::cuda
