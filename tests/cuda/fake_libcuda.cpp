// The functions of the fake driver that do more than the stubs in fake_defaults.cpp.
#include "cuda/fake_libcuda.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

using namespace attend::cuda;

namespace {

// Stack of current devices, each stored plus 1. The stack is never freed, because code that runs at exit may still make
// a context current.
thread_local std::vector<int>& contexts = *new std::vector<int>();

bool fails(const char* symbol) {
  return attend_fake_cuda()->failing == symbol;
}

ContextHandle context_of(int device) {
  static char places[2];
  return reinterpret_cast<ContextHandle>(&places[device]);
}

}  // namespace

extern "C" {

DriverResult cuGetErrorName(DriverResult, const char** name) {
  *name = "CUDA_ERROR_INVALID_VALUE";
  return 0;
}
DriverResult cuGetErrorString(DriverResult, const char** text) {
  *text = "invalid argument";
  return 0;
}
DriverResult cuDriverGetVersion(int* version) {
  *version = 13000;
  return 0;
}
DriverResult cuDeviceGetCount(int* count) {
  *count = 2;
  return 0;
}
DriverResult cuDeviceGet(DeviceIndex* device, int index) {
  *device = index;
  return 0;
}
DriverResult cuDeviceGetName(char* name, int, DeviceIndex) {
  std::strcpy(name, "Fake GPU");
  return 0;
}
DriverResult cuDeviceTotalMem_v2(std::size_t* bytes, DeviceIndex) {
  *bytes = std::size_t{1} << 36;
  return 0;
}
DriverResult cuDeviceGetAttribute(int* value, DeviceAttribute which, DeviceIndex device) {
  // ATTEND_FAKE_CAPABILITY sets the compute capability of device 0 as 10 * major + minor. The default is 9.0.
  const char* told = std::getenv("ATTEND_FAKE_CAPABILITY");
  const int capability = device != 0 ? 97 : told != nullptr ? std::atoi(told) : 90;
  *value = which == DeviceAttribute::kComputeCapabilityMajor   ? capability / 10
           : which == DeviceAttribute::kComputeCapabilityMinor ? capability % 10
           : which == DeviceAttribute::kMaxSmemPerBlockOptin   ? 232448
                                                               : 132;
  return 0;
}
DriverResult cuDevicePrimaryCtxRetain(ContextHandle* context, DeviceIndex device) {
  *context = context_of(device);
  return 0;
}
DriverResult cuCtxPushCurrent_v2(ContextHandle context) {
  contexts.push_back(context == context_of(0) ? 1 : 2);
  attend_fake_cuda()->current = contexts.back();
  ++attend_fake_cuda()->pushes;
  return 0;
}
DriverResult cuCtxPopCurrent_v2(ContextHandle*) {
  contexts.pop_back();
  attend_fake_cuda()->current = contexts.empty() ? 0 : contexts.back();
  ++attend_fake_cuda()->pops;
  return 0;
}
DriverResult cuModuleLoadData(ModuleHandle* module, const void* image) {
  if (fails("cuModuleLoadData")) return 1;
  *module = reinterpret_cast<ModuleHandle>(const_cast<void*>(image));
  ++attend_fake_cuda()->modules;
  return 0;
}
DriverResult cuModuleUnload(ModuleHandle) {
  --attend_fake_cuda()->modules;
  return 0;
}
DriverResult cuFuncSetAttribute(FunctionHandle, FunctionAttribute, int value) {
  if (fails("cuFuncSetAttribute")) return 1;
  attend_fake_cuda()->max_dynamic_smem = value;
  ++attend_fake_cuda()->attribute_calls;
  return 0;
}
DriverResult cuLaunchKernelEx(const DriverLaunchConfig* config, FunctionHandle, void**, void**) {
  if (fails("cuLaunchKernelEx")) return 1;
  auto& state = *attend_fake_cuda();
  ++state.launches;
  state.launch = *config;
  state.cluster_x = config->num_attributes == 1 ? config->attributes[0].value.cluster.x : 0;
  return 0;
}
DriverResult cuMemPoolCreate(MemoryPoolHandle* pool, const MemoryPoolProperties*) {
  static char place;
  *pool = reinterpret_cast<MemoryPoolHandle>(&place);
  return 0;
}
DriverResult cuMemPoolGetAttribute(MemoryPoolHandle, MemoryPoolAttribute which, void* value) {
  if (fails("cuMemPoolGetAttribute")) return 1;
  *static_cast<std::uint64_t*>(value) = attend_fake_cuda()->pool[static_cast<int>(which)];
  return 0;
}
DriverResult cuMemPoolSetAttribute(MemoryPoolHandle, MemoryPoolAttribute which, void* value) {
  attend_fake_cuda()->pool[static_cast<int>(which)] = *static_cast<std::uint64_t*>(value);
  return 0;
}
DriverResult cuMemAllocFromPoolAsync(DevicePointer* pointer, std::size_t bytes, MemoryPoolHandle, StreamHandle) {
  if (fails("cuMemAllocFromPoolAsync")) return 1;
  auto& state = *attend_fake_cuda();
  *pointer = bytes;  // used as the address, so cuMemFreeAsync receives the size again
  ++state.allocations;
  state.pool[7] += bytes;
  state.pool[8] = std::max(state.pool[8], state.pool[7]);
  return 0;
}
DriverResult cuMemAllocManaged(DevicePointer* pointer, std::size_t bytes, unsigned) {
  *pointer = reinterpret_cast<DevicePointer>(std::aligned_alloc(256, (bytes + 255) / 256 * 256));
  return 0;
}
DriverResult cuMemAlloc_v2(DevicePointer* pointer, std::size_t bytes) {
  return cuMemAllocManaged(pointer, bytes, 0);
}
DriverResult cuMemHostAlloc(void** pointer, std::size_t bytes, unsigned) {
  *pointer = std::malloc(bytes);
  return 0;
}
DriverResult cuMemFreeHost(void* pointer) {
  std::free(pointer);
  return 0;
}
DriverResult cuMemFree_v2(DevicePointer pointer) {
  std::free(reinterpret_cast<void*>(pointer));
  return 0;
}
DriverResult cuMemcpyDtoHAsync_v2(void* to, DevicePointer from, std::size_t bytes, StreamHandle) {
  // Lowest address in the pool; smaller values are not addresses.
  constexpr DevicePointer kNoAddress = DevicePointer{1} << 32;
  if (from >= kNoAddress) std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
  return 0;
}
DriverResult cuMemcpyDtoDAsync_v2(DevicePointer to, DevicePointer from, std::size_t bytes, StreamHandle) {
  if (fails("cuMemcpyDtoDAsync_v2")) return 1;
  std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
  return 0;
}
DriverResult cuMemFreeAsync(DevicePointer pointer, StreamHandle) {
  --attend_fake_cuda()->allocations;
  attend_fake_cuda()->pool[7] -= pointer;
  return 0;
}

}  // extern "C"
