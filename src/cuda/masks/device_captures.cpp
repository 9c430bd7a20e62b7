#include "cuda/masks/device_captures.hpp"

#include <cstring>

#include "core/problem_checks.hpp"

namespace attend::cuda {
namespace {

/// Returns the shape of the tensor in memory: a broadcast dimension, which has stride 0, has extent 1.
Shape own_extents(const Tensor& t) {
  Shape extents = t.shape;
  for (std::size_t d = 0; d < extents.size(); ++d) {
    if (t.stride[d] == 0) extents[d] = 1;
  }
  return extents;
}

std::size_t bytes_of(const Tensor& t, const Shape& extents) {
  std::size_t bytes = dtype_bytes(t.dtype);
  for (const std::int64_t extent : extents) bytes *= static_cast<std::size_t>(extent);
  return bytes;
}

/// Returns a copy of the elements in row-major order.
std::vector<std::byte> packed(const Tensor& t, const Shape& extents) {
  const std::size_t size = dtype_bytes(t.dtype);
  std::vector<std::byte> bytes(bytes_of(t, extents));
  std::byte* to = bytes.data();
  const auto* const from = static_cast<const std::byte*>(t.data);
  const auto step = [&](std::size_t d) { return t.stride[d] * static_cast<std::int64_t>(size); };
  for (std::int64_t a = 0; a < extents[0]; ++a) {
    for (std::int64_t b = 0; b < extents[1]; ++b) {
      for (std::int64_t c = 0; c < extents[2]; ++c) {
        const std::byte* const row = from + a * step(0) + b * step(1) + c * step(2);
        for (std::int64_t d = 0; d < extents[3]; ++d, to += size) std::memcpy(to, row + d * step(3), size);
      }
    }
  }
  return bytes;
}

}  // namespace

DeviceCaptures::DeviceCaptures(const std::vector<core::MaskCapture>& captures, int device, StreamHandle stream)
    : captures_(captures) {
  for (core::MaskCapture& capture : captures_) {
    const Device found = capture.tensor.device;
    if (found.type == DeviceType::kCPU) {
      copy(capture.tensor, stream);
    } else if (found.index != device) {
      core::refuse("mask: capture '{}': on CUDA device {}, allowed on a CPU or on CUDA device {}, which makes the mask",
                   capture.name, found.index, device);
    }
  }
}

void DeviceCaptures::copy(Tensor& tensor, StreamHandle stream) {
  const Shape extents = own_extents(tensor);
  Shape dense = contiguous_strides(extents);
  bool is_dense = true;
  for (std::size_t d = 0; d < dense.size(); ++d) {
    if (extents[d] == 1) dense[d] = 0;
    is_dense = is_dense && (extents[d] == 1 || tensor.stride[d] == dense[d]);
  }
  const std::size_t bytes = bytes_of(tensor, extents);
  Scratch& memory = memory_.emplace_back(bytes, stream);
  const void* from = tensor.data;
  if (!is_dense) from = packed_.emplace_back(packed(tensor, extents)).data();
  memory.copy_from_host(from, bytes);
  tensor.data = reinterpret_cast<void*>(memory.data());  // NOLINT(performance-no-int-to-ptr)
  tensor.stride = dense;
}

}  // namespace attend::cuda
