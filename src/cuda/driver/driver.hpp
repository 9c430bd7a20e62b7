// The functions of libcuda, NVIDIA's driver library. The library is loaded and initialised on first use. All CUDA
// driver calls use this table, and every result is checked.
#pragma once

#include <string>
#include <string_view>

#include "cuda/driver/driver_types.hpp"

namespace attend::cuda {

// Each row has the name of a member of Driver, the name of the function in libcuda, and the parameter types.
#define ATTEND_DRIVER_FUNCTIONS(X)                                                                            \
  X(get_error_name, cuGetErrorName, (DriverResult, const char**))                                             \
  X(get_error_string, cuGetErrorString, (DriverResult, const char**))                                         \
  X(init, cuInit, (unsigned))                                                                                 \
  X(driver_version, cuDriverGetVersion, (int*))                                                               \
  X(device_count, cuDeviceGetCount, (int*))                                                                   \
  X(device_get, cuDeviceGet, (DeviceIndex*, int))                                                             \
  X(device_name, cuDeviceGetName, (char*, int, DeviceIndex))                                                  \
  X(device_memory, cuDeviceTotalMem_v2, (std::size_t*, DeviceIndex))                                          \
  X(device_attribute, cuDeviceGetAttribute, (int*, DeviceAttribute, DeviceIndex))                             \
  X(can_access_peer, cuDeviceCanAccessPeer, (int*, DeviceIndex, DeviceIndex))                                 \
  X(primary_retain, cuDevicePrimaryCtxRetain, (ContextHandle*, DeviceIndex))                                  \
  X(primary_release, cuDevicePrimaryCtxRelease_v2, (DeviceIndex))                                             \
  X(context_get, cuCtxGetCurrent, (ContextHandle*))                                                           \
  X(context_push, cuCtxPushCurrent_v2, (ContextHandle))                                                       \
  X(context_pop, cuCtxPopCurrent_v2, (ContextHandle*))                                                        \
  X(enable_peer_access, cuCtxEnablePeerAccess, (ContextHandle, unsigned))                                     \
  X(context_synchronize, cuCtxSynchronize, ())                                                                \
  X(module_load_data, cuModuleLoadData, (ModuleHandle*, const void*))                                         \
  X(module_unload, cuModuleUnload, (ModuleHandle))                                                            \
  X(module_get_function, cuModuleGetFunction, (FunctionHandle*, ModuleHandle, const char*))                   \
  X(function_get_attribute, cuFuncGetAttribute, (int*, FunctionAttribute, FunctionHandle))                    \
  X(function_set_attribute, cuFuncSetAttribute, (FunctionHandle, FunctionAttribute, int))                     \
  X(launch_kernel, cuLaunchKernelEx, (const DriverLaunchConfig*, FunctionHandle, void**, void**))             \
  X(stream_create, cuStreamCreateWithPriority, (StreamHandle*, unsigned, int))                                \
  X(stream_destroy, cuStreamDestroy_v2, (StreamHandle))                                                       \
  X(stream_query, cuStreamQuery, (StreamHandle))                                                              \
  X(stream_number, cuStreamGetId, (StreamHandle, unsigned long long*))                                        \
  X(stream_capture, cuStreamGetCaptureInfo_v2,                                                                \
    (StreamHandle, int*, std::uint64_t*, GraphHandle*, const void**, std::size_t*))                           \
  X(user_object_create, cuUserObjectCreate, (UserObjectHandle*, void*, void (*)(void*), unsigned, unsigned))  \
  X(graph_retain_object, cuGraphRetainUserObject, (GraphHandle, UserObjectHandle, unsigned, unsigned))        \
  X(stream_synchronize, cuStreamSynchronize, (StreamHandle))                                                  \
  X(stream_wait_event, cuStreamWaitEvent, (StreamHandle, EventHandle, unsigned))                              \
  X(event_create, cuEventCreate, (EventHandle*, unsigned))                                                    \
  X(event_destroy, cuEventDestroy_v2, (EventHandle))                                                          \
  X(event_record, cuEventRecord, (EventHandle, StreamHandle))                                                 \
  X(event_synchronize, cuEventSynchronize, (EventHandle))                                                     \
  X(event_elapsed, cuEventElapsedTime, (float*, EventHandle, EventHandle))                                    \
  X(ipc_get_event, cuIpcGetEventHandle, (IpcHandle*, EventHandle))                                            \
  X(ipc_open_event, cuIpcOpenEventHandle, (EventHandle*, IpcHandle))                                          \
  X(ipc_get_memory, cuIpcGetMemHandle, (IpcHandle*, DevicePointer))                                           \
  X(ipc_open_memory, cuIpcOpenMemHandle_v2, (DevicePointer*, IpcHandle, unsigned))                            \
  X(ipc_close_memory, cuIpcCloseMemHandle, (DevicePointer))                                                   \
  X(context_device, cuCtxGetDevice, (DeviceIndex*))                                                           \
  X(pool_create, cuMemPoolCreate, (MemoryPoolHandle*, const MemoryPoolProperties*))                           \
  X(pool_get_attribute, cuMemPoolGetAttribute, (MemoryPoolHandle, MemoryPoolAttribute, void*))                \
  X(pool_set_attribute, cuMemPoolSetAttribute, (MemoryPoolHandle, MemoryPoolAttribute, void*))                \
  X(pool_alloc_async, cuMemAllocFromPoolAsync, (DevicePointer*, std::size_t, MemoryPoolHandle, StreamHandle)) \
  X(mem_free_async, cuMemFreeAsync, (DevicePointer, StreamHandle))                                            \
  X(mem_alloc, cuMemAlloc_v2, (DevicePointer*, std::size_t))                                                  \
  X(mem_free, cuMemFree_v2, (DevicePointer))                                                                  \
  X(copy_on_device, cuMemcpyDtoDAsync_v2, (DevicePointer, DevicePointer, std::size_t, StreamHandle))          \
  X(host_alloc, cuMemHostAlloc, (void**, std::size_t, unsigned))                                              \
  X(host_free, cuMemFreeHost, (void*))                                                                        \
  X(copy_between_devices, cuMemcpyPeerAsync,                                                                  \
    (DevicePointer, ContextHandle, DevicePointer, ContextHandle, std::size_t, StreamHandle))                  \
  X(copy_to_device, cuMemcpyHtoDAsync_v2, (DevicePointer, const void*, std::size_t, StreamHandle))            \
  X(copy_to_host, cuMemcpyDtoHAsync_v2, (void*, DevicePointer, std::size_t, StreamHandle))                    \
  X(memset_async, cuMemsetD8Async, (DevicePointer, unsigned char, std::size_t, StreamHandle))                 \
  X(memset_words_async, cuMemsetD32Async, (DevicePointer, unsigned, std::size_t, StreamHandle))               \
  X(memset_rows_async, cuMemsetD2D8Async,                                                                     \
    (DevicePointer, std::size_t, unsigned char, std::size_t, std::size_t, StreamHandle))                      \
  X(exchange_capture_mode, cuThreadExchangeStreamCaptureMode, (int*))

/// The functions of the driver library.
struct Driver {
// NOLINTBEGIN(bugprone-macro-parentheses): the arguments are declarators and parameter lists.
#define ATTEND_DECLARE(member, symbol, parameters) DriverResult(*member) parameters = nullptr;
  ATTEND_DRIVER_FUNCTIONS(ATTEND_DECLARE)
#undef ATTEND_DECLARE
  // NOLINTEND(bugprone-macro-parentheses)
  // Null if the driver is old. An old driver supports no GPU that needs this function.
  DriverResult (*tensor_map_encode_tiled)(TensorMap*, TensorMapType, std::uint32_t rank, void* address,
                                          const std::uint64_t* dims, const std::uint64_t* strides,
                                          const std::uint32_t* box, const std::uint32_t* element_strides,
                                          int interleave, TensorMapSwizzle, TensorMapPromotion, int fill) = nullptr;
  std::string path;  ///< path of the loaded libcuda.so.1
  int version = 0;   ///< newest CUDA version that the driver supports, as 1000 * major + 10 * minor
};

/// Returns the driver of this process. The first call loads libcuda.so.1, or the file that ATTEND_LIBCUDA_PATH names,
/// and initialises it.
/// @throws Error (kMissingHardware) if there is no driver or no GPU. The next call tries again. If a process uses the
///         driver and then forks, the driver refuses every call of the child process with CUDA_ERROR_NOT_INITIALIZED.
const Driver& driver();

/// Throws an Error for a driver call that failed. The message contains the name of the call, CUDA's name and
/// description of `result`, and the operation that the library was performing.
[[noreturn]] void fail_call(DriverResult result, const char* call, std::string_view doing);

/// Checks the result of a driver call. @throws Error if the call failed: kMissingHardware if there is no GPU, otherwise
/// kInternal.
inline void check_call(DriverResult result, const char* call, std::string_view doing) {
  if (result != 0) [[unlikely]]
    fail_call(result, call, doing);
}

}  // namespace attend::cuda
