#include "gpu/large_memory.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "attend/error.hpp"
#include "cuda/driver/device.hpp"
#include "cuda/driver/driver.hpp"
#include "gpu/forward_checks.hpp"

namespace attend::test {
namespace {

cuda::DeviceMemory wait_for_memory(std::size_t bytes) {
  constexpr auto kPause = std::chrono::milliseconds(200);
  const auto last = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  for (;;) {
    try {
      return cuda::DeviceMemory(bytes);
    } catch (const Error&) {
      if (std::chrono::steady_clock::now() > last) throw;
    }
    std::this_thread::sleep_for(kPause);
  }
}

cuda::DevicePointer pointer(const void* address) {
  return reinterpret_cast<cuda::DevicePointer>(address);
}

void copy(const void* from, void* to, std::size_t bytes, cuda::StreamHandle stream) {
  cuda::check_call(cuda::driver().copy_on_device(pointer(to), pointer(from), bytes, stream), "cuMemcpyDtoDAsync",
                   "copying a test's tensor");
}

std::byte* row_of(const Tensor& t, std::int64_t b, std::int64_t h, std::int64_t row) {
  return static_cast<std::byte*>(t.data) +
         (b * t.stride[0] + h * t.stride[1] + row * t.stride[2]) * dtype_bytes(t.dtype);
}

}  // namespace

LargeMemory::LargeMemory(std::size_t bytes) : memory_(wait_for_memory(bytes)) {}

std::string memory_is_short(std::size_t bytes) {
  constexpr std::size_t kLeftToOthers = std::size_t{4} << 30;
  const std::size_t all = cuda::device_info(0).memory_bytes;
  if (bytes + kLeftToOthers <= all) return "";
  return "the GPU has " + std::to_string(all >> 30) + " GiB, this wants " + std::to_string(bytes >> 30);
}

void copy_rows(const Tensor& from, const Tensor& to, cuda::StreamHandle stream) {
  const auto bytes = static_cast<std::size_t>(from.shape[3] * dtype_bytes(from.dtype));
  for (std::int64_t b = 0; b < from.shape[0]; ++b) {
    for (std::int64_t h = 0; h < from.shape[1]; ++h) {
      for (std::int64_t row = 0; row < from.shape[2]; ++row)
        copy(row_of(from, b, h, row), row_of(to, b, h, row), bytes, stream);
    }
  }
}

Tensor FarTensors::place(const TensorBuffer& like) {
  Tensor t = on_gpu(like);
  const std::int64_t size = dtype_bytes(t.dtype);
  std::int64_t dense = 1;
  for (const std::size_t d : {3U, 2U, 1U, 0U}) {
    if (d == dimension_) continue;
    t.stride[d] = dense;
    dense *= t.shape[d];
  }
  t.stride[dimension_] = step_ / size;
  t.data = memory_.data() + used_;
  constexpr std::int64_t kAlignment = 4096;
  used_ += (dense * size + kAlignment - 1) / kAlignment * kAlignment;
  const std::int64_t last = (t.shape[dimension_] - 1) * step_ + used_;
  if (used_ > std::min(step_, kRoom) || last > static_cast<std::int64_t>(memory_.bytes())) {
    throw Error(ErrorCode::kInternal, "FarTensors: no room for another tensor");
  }
  return t;
}

Repeated::Repeated(const TensorBuffer& like, std::int64_t batch, cuda::StreamHandle stream)
    : memory_(like.bytes().size() / static_cast<std::size_t>(like.shape()[0]) * static_cast<std::size_t>(batch)),
      view_(on_gpu(like)) {
  const std::size_t all = memory_.bytes();
  std::size_t done = std::min(all, like.bytes().size());
  copy(like.view().data, memory_.data(), done, stream);
  for (; done < all; done += std::min(done, all - done)) {
    copy(memory_.data(), memory_.data() + done, std::min(done, all - done), stream);
  }
  view_.data = memory_.data();
  view_.shape[0] = batch;
  view_.stride = contiguous_strides(view_.shape);
}

std::int64_t Repeated::fetch_first(const TensorBuffer& like, cuda::StreamHandle stream) const {
  std::vector<std::byte> found(memory_.bytes());
  cuda::check_call(cuda::driver().copy_to_host(found.data(), pointer(memory_.data()), found.size(), stream),
                   "cuMemcpyDtoHAsync", "fetching a test's result");
  cuda::synchronize(stream);
  const std::size_t first = like.bytes().size(), entry = first / static_cast<std::size_t>(like.shape()[0]);
  std::memcpy(like.view().data, found.data(), first);
  std::int64_t differing = 0;
  for (std::size_t at = first; at < found.size(); at += entry) {
    differing += std::memcmp(found.data() + at, found.data() + at % first, entry) != 0;
  }
  return differing;
}

}  // namespace attend::test
