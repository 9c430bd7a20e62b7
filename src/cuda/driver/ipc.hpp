// GPU memory and events that two processes of a machine share. All functions require that the context of the process's
// own GPU is current (ContextGuard).
#pragma once

#include <utility>

#include "cuda/driver/driver_types.hpp"

namespace attend::cuda {

/// An event that streams of other processes can wait for.
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

/// Makes later work on `stream` wait for the event's most recent record(), in this process or in the process that
/// created the event.
void wait_for_event(StreamHandle stream, EventHandle event);

/// Returns the handle with which another process opens this memory. The memory must be a DeviceMemory whose size is a
/// multiple of kSharedMemoryUnit.
[[nodiscard]] IpcHandle handle_of_memory(DevicePointer memory);

/// Size unit of shared memory. A smaller allocation shares its unit with other allocations, which the other process
/// could then access too.
constexpr std::size_t kSharedMemoryUnit = std::size_t{2} << 20;  // bytes

/// Memory of another process, possibly on another GPU. All copies from it must be complete before the destructor runs.
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
