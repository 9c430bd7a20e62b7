// What lets the same plain arithmetic compile under NVRTC, nvcc and the host compiler.
// Included by every header of kernels/common that the host uses too; includes nothing itself.
#pragma once

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define ATTEND_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define ATTEND_HOST_DEVICE inline
#endif

namespace attend {

using int64 = long long;            // sizes, strides, row and key indices
using uint64 = unsigned long long;  // seeds and offsets
using uint32 = unsigned int;

}  // namespace attend
