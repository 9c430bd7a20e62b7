#include "io/host_tensor.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "core/elements.hpp"
#include "core/problem_checks.hpp"

namespace attend::io {
namespace {

constexpr std::size_t kAlignment = 64;  // size in bytes of a cache line, and of the widest SIMD vector
constexpr std::int64_t kMaxBytes = std::int64_t{1} << 62;
constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

}  // namespace

std::optional<std::int64_t> tensor_bytes(DType dtype, const Shape& shape) noexcept {
  bool empty = false;
  for (const std::int64_t size : shape) {
    if (size < 0) return std::nullopt;
    empty = empty || size == 0;
  }
  if (empty) return 0;
  std::int64_t bytes = dtype_bytes(dtype);
  for (const std::int64_t size : shape) {
    if (__builtin_mul_overflow(bytes, size, &bytes) || bytes > kMaxBytes) return std::nullopt;
  }
  return bytes;
}

void require_memory(std::string_view what, std::int64_t bytes) {
  const double available = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  if (static_cast<double>(bytes) > available) {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("{}: needs {:.1f} GiB, allowed the {:.1f} GiB of this machine",
                                                         what, static_cast<double>(bytes) / kGiB, available / kGiB));
  }
}

void HostTensor::Free::operator()(std::byte* memory) const noexcept {
  std::free(memory);
}

HostTensor::HostTensor(DType dtype, const Shape& shape) {
  const std::optional<std::int64_t> bytes = tensor_bytes(dtype, shape);
  const std::string what = fmt::format("a {} tensor of shape {}", dtype_name(dtype), core::shape_text(shape));
  if (!bytes) throw Error(ErrorCode::kInvalidArgument, what + ": its size in bytes is negative or above 2^62");
  require_memory(what, *bytes);
  size_ = static_cast<std::size_t>(*bytes);
  const std::size_t rounded = (size_ + kAlignment - 1) / kAlignment * kAlignment;
  memory_.reset(static_cast<std::byte*>(std::aligned_alloc(kAlignment, rounded == 0 ? kAlignment : rounded)));
  if (!memory_) throw Error(ErrorCode::kInvalidArgument, fmt::format("{}: no memory for {} bytes", what, size_));
  view_ = Tensor::bhsd(memory_.get(), dtype, shape);
}

void HostTensor::poison() noexcept {
  if (size_ != 0) std::memset(memory_.get(), 0xFF, size_);  // in any float type, an element with all bits set is NaN
}

void HostTensor::fill(double value) {
  for (std::int64_t i = 0; i < numel(); ++i) core::store(view_.data, view_.dtype, i, value);
}

HostTensor HostTensor::converted(DType dtype) const {
  HostTensor copy(dtype, view_.shape);
  for (std::int64_t i = 0; i < numel(); ++i) {
    core::store(copy.view_.data, dtype, i, core::load(view_.data, view_.dtype, i));
  }
  return copy;
}

}  // namespace attend::io
