#include "cpu/captured.hpp"

#include <algorithm>
#include <stdexcept>

namespace attend::cpu {
namespace {

CapturedType captured_type(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return CapturedType::kF32;
    case DType::kF16:
      return CapturedType::kF16;
    case DType::kBF16:
      return CapturedType::kBF16;
    case DType::kF64:
      return CapturedType::kF64;
    case DType::kI32:
      return CapturedType::kI32;
    case DType::kI64:
      return CapturedType::kI64;
    case DType::kBool:
      return CapturedType::kU8;
    case DType::kF8E4M3:
    case DType::kI8:
      break;
  }
  throw std::logic_error("score function: a capture with an unsupported dtype");
}

}  // namespace

CapturedView captured_view(const Tensor& tensor, std::size_t rank) {
  CapturedView view = {tensor.data, captured_type(tensor.dtype)};
  view.rank = static_cast<std::int32_t>(rank);
  std::copy(tensor.shape.begin(), tensor.shape.end(), view.extent);
  std::copy(tensor.stride.begin(), tensor.stride.end(), view.stride);
  return view;
}

}  // namespace attend::cpu
