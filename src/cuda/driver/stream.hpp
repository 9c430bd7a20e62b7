// Streams, events and memory whose life follows a stream's order. All of them want the device's context current
// (ContextGuard).
#pragma once

#include <cstddef>
#include <utility>

#include "cuda/driver/driver_types.hpp"

namespace attend::cuda {

/// A stream of our own; does not synchronise with the default stream.
class OwnStream {
 public:
  enum class Priority { kNormal, kHigh };  ///< blocks of a high one start before others that wait

  explicit OwnStream(Priority priority = Priority::kNormal);
  ~OwnStream();
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;

  [[nodiscard]] StreamHandle get() const noexcept { return stream_; }

 private:
  StreamHandle stream_ = nullptr;
};

/// Is all that was put on `stream` so far done? Throws the error of whatever failed there.
[[nodiscard]] bool is_done(StreamHandle stream);

/// Returns when all that was put on `stream` so far is done; throws the error of whatever failed there.
void synchronize(StreamHandle stream);

/// While it lives, this thread may do what would end a capture of a stream of its own otherwise: load modules, say.
/// What it does is no part of the graph.
class RelaxedCapture {
 public:
  RelaxedCapture();
  ~RelaxedCapture();
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  int former_ = 2;  // CU_STREAM_CAPTURE_MODE_RELAXED, exchanged for the thread's own
};

/// Zeroes bytes in the stream's order. what: of them, in an error's text.
void clear(DevicePointer at, std::size_t bytes, StreamHandle stream, const char* what);
/// Runs of so many bytes, `pitch` bytes from one's start to the next's.
void clear_runs(DevicePointer at, std::size_t pitch, std::size_t bytes, std::size_t count, StreamHandle stream,
                const char* what);

/// A point in a stream.
class Event {
 public:
  enum class Timing { kOff, kOn };  ///< a point with a time costs more

  explicit Event(Timing timing = Timing::kOff);
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record(StreamHandle stream);
  /// Work put on `stream` from now on starts after this point.
  void make_wait(StreamHandle stream) const;
  void synchronize() const;
  [[nodiscard]] EventHandle get() const noexcept { return event_; }
  /// Milliseconds from `start` to this point; both with Timing::kOn, and reached.
  [[nodiscard]] float milliseconds_since(const Event& start) const;

 private:
  EventHandle event_ = nullptr;
};

/// Device memory that is there until the destructor, which waits for whoever uses it. Other GPUs of the process may be
/// let at it, as NCCL does, which memory of a pool is not made for.
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

/// Device memory that exists from its place in the stream's order to the destructor's place: nobody waits for it.
/// Captured graphs hold it too.
class Scratch {
 public:
  /// @param bytes  may be 0: then nothing is allocated and data() is 0
  Scratch(std::size_t bytes, StreamHandle stream);
  ~Scratch();
  Scratch(Scratch&& other) noexcept
      : data_(std::exchange(other.data_, 0)), bytes_(other.bytes_), stream_(other.stream_) {}
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  Scratch& operator=(Scratch&&) = delete;

  [[nodiscard]] DevicePointer data() const noexcept { return data_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

  /// Gives the memory away: the caller frees it (Driver::mem_free_async), in the order of whatever stream.
  [[nodiscard]] DevicePointer release() noexcept { return std::exchange(data_, 0); }

  /// Copies that are done when the stream gets there; `host` has to live until then.
  void copy_from_host(const void* host, std::size_t bytes);
  void copy_to_host(void* host, std::size_t bytes) const;

 private:
  DevicePointer data_ = 0;
  std::size_t bytes_ = 0;
  StreamHandle stream_ = nullptr;
};

}  // namespace attend::cuda
