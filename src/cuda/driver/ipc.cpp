#include "cuda/driver/ipc.hpp"

#include "cuda/driver/driver.hpp"

namespace attend::cuda {
namespace {

constexpr unsigned kEventDisableTiming = 2;
constexpr unsigned kEventInterprocess = 4;
constexpr unsigned kLazyEnablePeerAccess = 1;
constexpr const char* kSharing = "sharing a GPU's memory with another process";

}  // namespace

SharedEvent::SharedEvent() {
  check_call(driver().event_create(&event_, kEventDisableTiming | kEventInterprocess), "cuEventCreate",
             "creating an event for other processes");
}

SharedEvent::~SharedEvent() {
  driver().event_destroy(event_);
}

void SharedEvent::record(StreamHandle stream) {
  check_call(driver().event_record(event_, stream), "cuEventRecord", "marking a point in a stream");
}

IpcHandle SharedEvent::handle() const {
  IpcHandle handle = {};
  check_call(driver().ipc_get_event(&handle, event_), "cuIpcGetEventHandle", kSharing);
  return handle;
}

OpenedEvent::OpenedEvent(const IpcHandle& handle) {
  check_call(driver().ipc_open_event(&event_, handle), "cuIpcOpenEventHandle", kSharing);
}

OpenedEvent::~OpenedEvent() {
  if (event_ != nullptr) driver().event_destroy(event_);
}

void wait_for_event(StreamHandle stream, EventHandle event) {
  check_call(driver().stream_wait_event(stream, event, 0), "cuStreamWaitEvent", "ordering two streams");
}

IpcHandle handle_of_memory(DevicePointer memory) {
  IpcHandle handle = {};
  check_call(driver().ipc_get_memory(&handle, memory), "cuIpcGetMemHandle", kSharing);
  return handle;
}

OpenedMemory::OpenedMemory(const IpcHandle& handle) {
  check_call(driver().ipc_open_memory(&data_, handle, kLazyEnablePeerAccess), "cuIpcOpenMemHandle", kSharing);
}

OpenedMemory::~OpenedMemory() {
  if (data_ != 0) driver().ipc_close_memory(data_);
}

}  // namespace attend::cuda
