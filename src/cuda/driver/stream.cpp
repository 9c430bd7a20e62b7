#include "cuda/driver/stream.hpp"

#include <fmt/format.h>

#include <limits>

#include "attend/error.hpp"
#include "cuda/driver/driver.hpp"
#include "cuda/driver/memory_pool.hpp"

namespace attend::cuda {
namespace {

constexpr unsigned kStreamNonBlocking = 1;
constexpr unsigned kEventDisableTiming = 2;
constexpr int kHighestPriority = -100;  // the driver replaces it by the highest supported priority
constexpr DriverResult kNotReady = 600;

void check_fits(const char* what, std::size_t bytes, std::size_t room) {
  if (bytes > room) {
    throw Error(ErrorCode::kInternal, fmt::format("{}: {} bytes, allowed at most {}", what, bytes, room));
  }
}

}  // namespace

OwnStream::OwnStream(Priority priority) {
  const int wanted = priority == Priority::kHigh ? kHighestPriority : 0;
  check_call(driver().stream_create(&stream_, kStreamNonBlocking, wanted), "cuStreamCreateWithPriority",
             "creating a stream");
}

OwnStream::~OwnStream() {
  driver().stream_destroy(stream_);
}

bool is_done(StreamHandle stream) {
  const DriverResult result = driver().stream_query(stream);
  if (result == kNotReady) return false;
  check_call(result, "cuStreamQuery", "querying earlier work on the stream");
  return true;
}

void synchronize(StreamHandle stream) {
  check_call(driver().stream_synchronize(stream), "cuStreamSynchronize", "waiting for earlier work on the stream");
}

RelaxedCapture::RelaxedCapture() {
  check_call(driver().exchange_capture_mode(&former_), "cuThreadExchangeStreamCaptureMode", "loading during a capture");
}

RelaxedCapture::~RelaxedCapture() {
  driver().exchange_capture_mode(&former_);
}

void clear(DevicePointer at, std::size_t bytes, StreamHandle stream, const char* what) {
  check_call(driver().memset_async(at, 0, bytes, stream), "cuMemsetD8Async", what);
}

void clear_runs(DevicePointer at, std::size_t pitch, std::size_t bytes, std::size_t count, StreamHandle stream,
                const char* what) {
  if (bytes == 0 || count == 0) return;
  if (count == 1 || pitch == bytes) return clear(at, bytes * count, stream, what);
  constexpr std::size_t kMostPitch = std::numeric_limits<std::int32_t>::max();
  if (pitch <= kMostPitch) {
    return check_call(driver().memset_rows_async(at, pitch, 0, bytes, count, stream), "cuMemsetD2D8Async", what);
  }
  for (std::size_t run = 0; run < count; ++run) clear(at + run * pitch, bytes, stream, what);
}

Event::Event(Timing timing) {
  check_call(driver().event_create(&event_, timing == Timing::kOn ? 0 : kEventDisableTiming), "cuEventCreate",
             "creating an event");
}

Event::~Event() {
  driver().event_destroy(event_);
}

void Event::record(StreamHandle stream) {
  check_call(driver().event_record(event_, stream), "cuEventRecord", "marking a point in a stream");
}

void Event::make_wait(StreamHandle stream) const {
  check_call(driver().stream_wait_event(stream, event_, 0), "cuStreamWaitEvent", "ordering two streams");
}

void Event::synchronize() const {
  check_call(driver().event_synchronize(event_), "cuEventSynchronize", "waiting for an event");
}

float Event::milliseconds_since(const Event& start) const {
  float milliseconds = 0;
  check_call(driver().event_elapsed(&milliseconds, start.event_, event_), "cuEventElapsedTime", "timing");
  return milliseconds;
}

DeviceMemory::DeviceMemory(std::size_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;  // the driver refuses a size of 0 bytes
  const DriverResult result = driver().mem_alloc(&data_, bytes);
  if (result != 0) fail_call(result, "cuMemAlloc", fmt::format("allocating {} bytes", bytes));
}

DeviceMemory::~DeviceMemory() {
  if (data_ != 0) driver().mem_free(data_);
}

Scratch::Scratch(std::size_t bytes, StreamHandle stream) : bytes_(bytes), stream_(stream) {
  if (bytes == 0) return;  // the driver refuses a size of 0 bytes
  const DriverResult result = driver().pool_alloc_async(&data_, bytes, current_memory_pool(), stream);
  if (result != 0) fail_call(result, "cuMemAllocFromPoolAsync", fmt::format("allocating {} bytes of scratch", bytes));
}

Scratch::~Scratch() {
  if (data_ != 0) driver().mem_free_async(data_, stream_);
}

void Scratch::copy_from_host(const void* host, std::size_t bytes) {
  check_fits("copy to the device", bytes, bytes_);
  check_call(driver().copy_to_device(data_, host, bytes, stream_), "cuMemcpyHtoDAsync", "copying to the device");
}

void Scratch::copy_to_host(void* host, std::size_t bytes) const {
  check_fits("copy from the device", bytes, bytes_);
  check_call(driver().copy_to_host(host, data_, bytes, stream_), "cuMemcpyDtoHAsync", "copying from the device");
}

}  // namespace attend::cuda
