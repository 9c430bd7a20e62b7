// Implements the C functions for tensors, names and the version. They cannot fail.
#include <algorithm>

#include "attend/tensor.hpp"
#include "c/struct_sizes.hpp"

namespace attend::c {
namespace {

/// Returns the product of two sizes, or 2^62 if it overflows. Every call refuses a tensor of 2^62 or more bytes.
std::int64_t product(std::int64_t a, std::int64_t b) {
  constexpr std::int64_t kFar = std::int64_t{1} << 62;
  std::int64_t result = 0;
  if (__builtin_mul_overflow(a, b, &result)) return kFar;
  return std::min(result, kFar);
}

/// Sets a dense view. is_bshd determines the order of heads and seqlen in memory.
void set_tensor(attend_tensor* tensor, const void* data, std::int32_t dtype, const std::int64_t* shape, bool is_bshd) {
  if (tensor == nullptr) return;
  constexpr std::int64_t kEmpty[4] = {};
  const std::int64_t* sizes = shape == nullptr ? kEmpty : shape;
  *tensor = {};
  // Only outputs need memory that is not const. Inputs are only read.
  tensor->data = const_cast<void*>(data);  // NOLINT(cppcoreguidelines-pro-type-const-cast)
  tensor->dtype = dtype;
  std::copy_n(sizes, 4, tensor->shape);
  tensor->stride[0] = product(product(sizes[1], sizes[2]), sizes[3]);
  tensor->stride[1] = is_bshd ? sizes[3] : product(sizes[2], sizes[3]);
  tensor->stride[2] = is_bshd ? product(sizes[1], sizes[3]) : sizes[3];
  tensor->stride[3] = 1;
}

bool is_dtype(std::int32_t dtype) {
  return dtype >= 0 && dtype <= static_cast<std::int32_t>(DType::kI8);
}

}  // namespace
}  // namespace attend::c

void attend_tensor_init(attend_tensor* tensor, const void* data, std::int32_t dtype, const std::int64_t shape[4]) {
  attend::c::set_tensor(tensor, data, dtype, shape, false);
}

void attend_tensor_init_bshd(attend_tensor* tensor, const void* data, std::int32_t dtype, const std::int64_t shape[4]) {
  attend::c::set_tensor(tensor, data, dtype, shape, true);
}

const char* attend_version() {
  return ATTEND_VERSION_STRING;
}

std::int32_t attend_version_number() {
  return ATTEND_VERSION_NUMBER;
}

const char* attend_status_name(std::int32_t status) {
  switch (status) {
    case ATTEND_OK:
      return "ok";
    case ATTEND_INVALID_ARGUMENT:
      return "invalid argument";
    case ATTEND_UNSUPPORTED:
      return "unsupported";
    case ATTEND_MISSING_HARDWARE:
      return "missing hardware";
    case ATTEND_IO:
      return "input or output";
    case ATTEND_INTERNAL:
      return "internal";
    case ATTEND_OUT_OF_MEMORY:
      return "out of memory";
    default:
      return "unknown status";
  }
}

const char* attend_dtype_name(std::int32_t dtype) {
  return attend::c::is_dtype(dtype) ? attend::dtype_name(static_cast<attend::DType>(dtype)) : "?";
}

std::int64_t attend_dtype_bytes(std::int32_t dtype) {
  return attend::c::is_dtype(dtype) ? attend::dtype_bytes(static_cast<attend::DType>(dtype)) : 0;
}
