// GPU memory and events that two processes on the same machine share. Before any of these functions is called, the
// context of the process's GPU must be current (ContextGuard).
#pragma once

#include <utility>

#include "cuda/driver/driver_types.hpp"

namespace attend::cuda {

/// An event that other processes can open. Their streams can then wait for it.
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

/// An event that another process created.
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

/// Makes later work on `stream` wait for the most recent record() of the event. This process or the process that
/// created the event may have called record().
void wait_for_event(StreamHandle stream, EventHandle event);

/// Returns a handle with which another process can open `memory`. The memory must be a DeviceMemory whose size is a
/// multiple of kSharedMemoryUnit.
[[nodiscard]] IpcHandle handle_of_memory(DevicePointer memory);

/// Memory is shared in units of this size. A smaller allocation is in a unit with other allocations, and the other
/// process could access those too.
constexpr std::size_t kSharedMemoryUnit = std::size_t{2} << 20;  // in bytes

/// Memory that another process allocated, possibly on another GPU. The destructor must not run before all copies from
/// the memory are complete.
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
