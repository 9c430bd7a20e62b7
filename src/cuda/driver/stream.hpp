// Streams, events and GPU memory. Before any of these functions is called, the context of the GPU must be current
// (ContextGuard).
#pragma once

#include <cstddef>
#include <utility>

#include "cuda/driver/driver_types.hpp"

namespace attend::cuda {

/// A stream that this object creates and destroys. It does not synchronise with the default stream.
class OwnStream {
 public:
  /// If several streams have blocks that wait for a multiprocessor, blocks of a high-priority stream start first.
  enum class Priority { kNormal, kHigh };

  explicit OwnStream(Priority priority = Priority::kNormal);
  ~OwnStream();
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;

  [[nodiscard]] StreamHandle get() const noexcept { return stream_; }

 private:
  StreamHandle stream_ = nullptr;
};

/// Returns whether all work on `stream` is complete. Throws an Error if any of this work failed.
[[nodiscard]] bool is_done(StreamHandle stream);

/// Waits until all work on `stream` is complete. Throws an Error if any of this work failed.
void synchronize(StreamHandle stream);

/// Allows operations that are not part of a captured graph while this thread captures one. Without this object, an
/// operation such as loading a module would end the capture. The object must exist during the operation.
class RelaxedCapture {
 public:
  RelaxedCapture();
  ~RelaxedCapture();
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  int former_ = 2;  // CU_STREAM_CAPTURE_MODE_RELAXED; the constructor exchanges it for the thread's mode
};

/// Sets bytes to 0 in stream order. Error messages refer to the memory as `what`.
void clear(DevicePointer at, std::size_t bytes, StreamHandle stream, const char* what);
/// Sets `count` runs of `bytes` bytes each to 0. `pitch` is the distance in bytes from the start of a run to the start
/// of the next run.
void clear_runs(DevicePointer at, std::size_t pitch, std::size_t bytes, std::size_t count, StreamHandle stream,
                const char* what);

/// An event, which marks a point in the work of a stream.
class Event {
 public:
  enum class Timing { kOff, kOn };  ///< an event with timing is slower to record

  explicit Event(Timing timing = Timing::kOff);
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record(StreamHandle stream);
  /// Makes later work on `stream` wait until this event is reached.
  void make_wait(StreamHandle stream) const;
  void synchronize() const;
  [[nodiscard]] EventHandle get() const noexcept { return event_; }
  /// Returns the time in milliseconds from `start` to this event. Both events must have been created with Timing::kOn
  /// and must have been reached.
  [[nodiscard]] float milliseconds_since(const Event& start) const;

 private:
  EventHandle event_ = nullptr;
};

/// GPU memory that the destructor frees. The destructor waits for pending work that uses the memory. Other GPUs of the
/// process can be given access to the memory, as NCCL requires. Memory from a pool (Scratch) does not support this.
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

/// GPU memory from the library's pool. The memory is allocated and freed in stream order, so neither the constructor
/// nor the destructor waits for the GPU. A captured graph can contain the allocation.
class Scratch {
 public:
  /// @param bytes  size; if it is 0, nothing is allocated and data() returns 0
  Scratch(std::size_t bytes, StreamHandle stream);
  ~Scratch();
  Scratch(Scratch&& other) noexcept
      : data_(std::exchange(other.data_, 0)), bytes_(other.bytes_), stream_(other.stream_) {}
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  Scratch& operator=(Scratch&&) = delete;

  [[nodiscard]] DevicePointer data() const noexcept { return data_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

  /// Returns the address and gives up ownership of the memory. The caller must free the memory with
  /// Driver::mem_free_async, on any stream.
  [[nodiscard]] DevicePointer release() noexcept { return std::exchange(data_, 0); }

  /// Starts a copy in stream order. `host` must stay valid until the copy is complete.
  void copy_from_host(const void* host, std::size_t bytes);
  void copy_to_host(void* host, std::size_t bytes) const;

 private:
  DevicePointer data_ = 0;
  std::size_t bytes_ = 0;
  StreamHandle stream_ = nullptr;
};

}  // namespace attend::cuda
