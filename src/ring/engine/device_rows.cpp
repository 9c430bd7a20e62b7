#include "ring/engine/device_rows.hpp"

#include <cstddef>

#include "cuda/driver/driver.hpp"
#include "cuda/driver/stream.hpp"

namespace attend::ring {
namespace {

using cuda::DevicePointer;
using cuda::StreamHandle;

DevicePointer address_of(const void* data) {
  return reinterpret_cast<DevicePointer>(data);
}

void clear_rows(const Tensor& dense, const KeyRange& rows, StreamHandle stream) {
  const Shape& shape = dense.shape;
  const auto bytes = [&](std::int64_t elements) {
    return static_cast<std::size_t>(elements * dtype_bytes(dense.dtype));
  };
  cuda::clear_runs(address_of(dense.data) + bytes(rows.begin * shape[3]), bytes(shape[2] * shape[3]),
                   bytes((rows.end - rows.begin) * shape[3]), static_cast<std::size_t>(shape[0] * shape[1]), stream,
                   "rows of a ring's sums");
}

}  // namespace

void clear_gaps(std::span<const Tensor> tensors, StreamHandle stream) {
  const std::byte* end = nullptr;  // end of the previous tensor
  for (const Tensor& t : tensors) {
    const std::int64_t bytes = t.numel() * dtype_bytes(t.dtype);
    if (bytes == 0) continue;
    const auto* const begin = static_cast<const std::byte*>(t.data);
    if (end != nullptr && begin > end) {
      cuda::clear(address_of(end), static_cast<std::size_t>(begin - end), stream, "a message's gaps");
    }
    end = begin + bytes;
  }
}

bool stores_rows(WrittenRows& written, const Run& rows, std::span<const Tensor> dense, StreamHandle stream) {
  const std::vector<KeyRange> fresh = written.take(rows.local_begin, rows.local_begin + rows.length);
  if (fresh.size() == 1 && fresh[0].end - fresh[0].begin == rows.length) return true;
  for (const KeyRange& range : fresh) {
    for (const Tensor& t : dense) clear_rows(t, range, stream);
  }
  return false;
}

void clear_unwritten(WrittenRows& written, std::span<const Tensor> dense, StreamHandle stream) {
  for (const KeyRange& range : written.take(0, dense[0].shape[2])) {
    for (const Tensor& t : dense) clear_rows(t, range, stream);
  }
}

}  // namespace attend::ring
