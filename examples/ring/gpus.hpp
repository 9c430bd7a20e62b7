// The functions of NVIDIA's driver for lesson 8, loaded at run time: GPUs, and tensors in their memory. Building
// requires no CUDA. A failed call ends the program.
#pragma once

#include <dlfcn.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

#include "attend/tensor.hpp"

/// Returns a function of libcuda, or null without a driver.
template <class Function>
Function* cuda_function(const char* name) {
  static void* const library = dlopen("libcuda.so.1", RTLD_NOW);
  return library == nullptr ? nullptr : reinterpret_cast<Function*>(dlsym(library, name));
}

template <class... Parameters, class... Arguments>
void call_cuda(const char* name, int (*)(Parameters...), Arguments... arguments) {
  const int error = cuda_function<int(Parameters...)>(name)(arguments...);
  if (error == 0) return;
  std::fprintf(stderr, "%s: error %d\n", name, error);
  std::exit(1);
}

using Address = unsigned long long;

inline int number_of_gpus() {
  auto* const init = cuda_function<int(unsigned)>("cuInit");
  int count = 0;
  if (init == nullptr || init(0) != 0) return 0;
  return cuda_function<int(int*)>("cuDeviceGetCount")(&count) == 0 ? count : 0;
}

/// Selects the GPU of this thread's tensors.
inline void use_gpu(int gpu) {
  int device = 0;
  void* context = nullptr;
  call_cuda("cuDeviceGet", static_cast<int (*)(int*, int)>(nullptr), &device, gpu);
  call_cuda("cuDevicePrimaryCtxRetain", static_cast<int (*)(void**, int)>(nullptr), &context, device);
  call_cuda("cuCtxSetCurrent", static_cast<int (*)(void*)>(nullptr), context);
}

/// A dense float32 tensor on the current GPU.
class GpuTensor {
 public:
  GpuTensor(const attend::Shape& shape, int gpu)
      : bytes_(static_cast<std::size_t>(shape[0] * shape[1] * shape[2] * shape[3]) * sizeof(float)) {
    call_cuda("cuMemAlloc_v2", static_cast<int (*)(Address*, std::size_t)>(nullptr), &address_, bytes_);
    view = attend::Tensor::bhsd(reinterpret_cast<void*>(address_), attend::DType::kF32, shape,
                                {attend::DeviceType::kCUDA, gpu});
  }
  GpuTensor(const GpuTensor&) = delete;
  GpuTensor& operator=(const GpuTensor&) = delete;
  ~GpuTensor() { call_cuda("cuMemFree_v2", static_cast<int (*)(Address)>(nullptr), address_); }

  void take(const std::vector<float>& values) {
    call_cuda("cuMemcpyHtoD_v2", static_cast<int (*)(Address, const void*, std::size_t)>(nullptr), address_,
              static_cast<const void*>(values.data()), bytes_);
  }
  /// Waits for the work on the default stream.
  void give(std::vector<float>& values) const {
    call_cuda("cuMemcpyDtoH_v2", static_cast<int (*)(void*, Address, std::size_t)>(nullptr),
              static_cast<void*>(values.data()), address_, bytes_);
  }

  attend::Tensor view;

 private:
  std::size_t bytes_;
  Address address_ = 0;
};
