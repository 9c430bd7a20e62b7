// Definitions with which the same arithmetic code compiles under NVRTC, nvcc and the host compiler. Every header in
// kernels/common that the host also uses includes this file. Device code includes no header of the C++ library.
#pragma once

#if !defined(__CUDACC_RTC__)
#include <cstdint>
#endif

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define ATTEND_HOST_DEVICE __host__ __device__ __forceinline__
#define ATTEND_UNROLL _Pragma("unroll")
#else
#define ATTEND_HOST_DEVICE inline
#define ATTEND_UNROLL  // host compilers do not support this pragma, and do not need it
#endif

namespace attend {

#if defined(__CUDACC_RTC__)
using int64 = long long;            // sizes, strides, row and key indices
using uint64 = unsigned long long;  // seeds and offsets
#else
using int64 = std::int64_t;
using uint64 = std::uint64_t;
#endif
using uint32 = unsigned int;

}  // namespace attend
