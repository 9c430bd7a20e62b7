// Streams, events and device memory. All functions require that the device's context is current (ContextGuard).
#pragma once

#include <cstddef>
#include <utility>

#include "cuda/driver/driver_types.hpp"

namespace attend::cuda {

/// A stream owned by this object. It does not synchronise with the default stream.
class OwnStream {
 public:
  /// Waiting blocks of a high-priority stream start before those of other streams.
  enum class Priority { kNormal, kHigh };

  explicit OwnStream(Priority priority = Priority::kNormal);
  ~OwnStream();
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;

  [[nodiscard]] StreamHandle get() const noexcept { return stream_; }

 private:
  StreamHandle stream_ = nullptr;
};

/// Returns whether all work on `stream` is done. Throws if any of that work failed.
[[nodiscard]] bool is_done(StreamHandle stream);

/// Waits until all work on `stream` is done. Throws if any of that work failed.
void synchronize(StreamHandle stream);

/// While this object lives, its thread may perform operations, such as loading a module, that would otherwise end a
/// capture by this thread. These operations are not part of the captured graph.
class RelaxedCapture {
 public:
  RelaxedCapture();
  ~RelaxedCapture();
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  int former_ = 2;  // CU_STREAM_CAPTURE_MODE_RELAXED, exchanged for the mode of the thread
};

/// Zeroes bytes in stream order. `what` describes the memory in error messages.
void clear(DevicePointer at, std::size_t bytes, StreamHandle stream, const char* what);
/// Zeroes `count` runs of `bytes` bytes each. `pitch` is the distance in bytes between the starts of two runs.
void clear_runs(DevicePointer at, std::size_t pitch, std::size_t bytes, std::size_t count, StreamHandle stream,
                const char* what);

/// An event: a point in a stream.
class Event {
 public:
  enum class Timing { kOff, kOn };  ///< timing makes the event slower

  explicit Event(Timing timing = Timing::kOff);
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record(StreamHandle stream);
  /// Makes later work on `stream` wait for this point.
  void make_wait(StreamHandle stream) const;
  void synchronize() const;
  [[nodiscard]] EventHandle get() const noexcept { return event_; }
  /// Returns the milliseconds from `start` to this point. Both events need Timing::kOn and must have been reached.
  [[nodiscard]] float milliseconds_since(const Event& start) const;

 private:
  EventHandle event_ = nullptr;
};

/// Device memory that is freed in the destructor, which waits for pending work that uses the memory. Other GPUs of the
/// process can be given access, as NCCL requires. Memory from a pool does not support that.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  explicit DeviceMemory(std::size_t bytes);
  ~DeviceMemory();
  DeviceMemory(DeviceMemory&& other) noexcept
      : data_(std::exchange(other.data_, 0)), bytes_(std::exchange(other.bytes_, 0)) {}
  DeviceMemory& operator=(DeviceMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  [[nodiscard]] DevicePointer data() const noexcept { return data_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

 private:
  DevicePointer data_ = 0;
  std::size_t bytes_ = 0;
};

/// Device memory from a pool. It is allocated and freed in stream order, so neither the constructor nor the destructor
/// waits. Captured graphs can contain it.
class Scratch {
 public:
  /// @param bytes  if 0, nothing is allocated and data() is 0
  Scratch(std::size_t bytes, StreamHandle stream);
  ~Scratch();
  Scratch(Scratch&& other) noexcept
      : data_(std::exchange(other.data_, 0)), bytes_(other.bytes_), stream_(other.stream_) {}
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  Scratch& operator=(Scratch&&) = delete;

  [[nodiscard]] DevicePointer data() const noexcept { return data_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

  /// Releases ownership of the memory. The caller must free it (Driver::mem_free_async), in the order of any stream.
  [[nodiscard]] DevicePointer release() noexcept { return std::exchange(data_, 0); }

  /// Copy in stream order. `host` must stay valid until the copy is done.
  void copy_from_host(const void* host, std::size_t bytes);
  void copy_to_host(void* host, std::size_t bytes) const;

 private:
  DevicePointer data_ = 0;
  std::size_t bytes_ = 0;
  StreamHandle stream_ = nullptr;
};

}  // namespace attend::cuda
