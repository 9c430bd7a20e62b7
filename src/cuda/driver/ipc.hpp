// What two processes of a machine share of their GPUs: memory, and points in streams. All of it wants the context of
// the process's own GPU to be current (ContextGuard).
#pragma once

#include <utility>

#include "cuda/driver/driver_types.hpp"

namespace attend::cuda {

/// A point in a stream that streams of other processes may wait for.
class SharedEvent {
 public:
  SharedEvent();
  ~SharedEvent();
  SharedEvent(const SharedEvent&) = delete;
  SharedEvent& operator=(const SharedEvent&) = delete;

  void record(StreamHandle stream);
  [[nodiscard]] IpcHandle handle() const;

 private:
  EventHandle event_ = nullptr;
};

/// An event of another process.
class OpenedEvent {
 public:
  OpenedEvent() = default;
  explicit OpenedEvent(const IpcHandle& handle);
  ~OpenedEvent();
  OpenedEvent(OpenedEvent&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  OpenedEvent& operator=(OpenedEvent&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }

  [[nodiscard]] EventHandle get() const noexcept { return event_; }

 private:
  EventHandle event_ = nullptr;
};

/// Work put on `stream` from now on starts after the event's last record() so far, here or in its own process.
void wait_for_event(StreamHandle stream, EventHandle event);

/// What another process opens memory of this one by, which is a DeviceMemory of whole kSharedMemoryUnit.
[[nodiscard]] IpcHandle handle_of_memory(DevicePointer memory);

/// Smaller allocations share theirs with others, which would be shared with the process too.
constexpr std::size_t kSharedMemoryUnit = std::size_t{2} << 20;  // bytes

/// Memory of another process, maybe on another GPU. Nothing on its way from it when it goes.
class OpenedMemory {
 public:
  OpenedMemory() = default;
  explicit OpenedMemory(const IpcHandle& handle);
  ~OpenedMemory();
  OpenedMemory(OpenedMemory&& other) noexcept : data_(std::exchange(other.data_, 0)) {}
  OpenedMemory& operator=(OpenedMemory&& other) noexcept {
    std::swap(data_, other.data_);
    return *this;
  }

  [[nodiscard]] DevicePointer data() const noexcept { return data_; }

 private:
  DevicePointer data_ = 0;
};

}  // namespace attend::cuda
