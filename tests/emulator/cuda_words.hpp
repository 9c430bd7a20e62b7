// Defines the CUDA C++ names that kernels use, for a host compiler. Each name behaves as it does for a thread of a
// block. This file is included before the source of a kernel, in place of NVRTC's built-in declarations.
#pragma once

#include <bit>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "threads.hpp"

#define __CUDACC__ 1
#define __CUDA_ARCH__ 900
#define __host__
#define __device__
#define __global__
#define __grid_constant__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __shared__
#define __restrict__

struct alignas(8) int2 {
  int x, y;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};

/// Dynamic shared memory. All emulated kernels use this array, which replaces the dynamic shared memory that each
/// kernel declares.
namespace attend {
constexpr std::size_t kEmulatedSmem = 232448;
alignas(1024) inline char smem[kEmulatedSmem];
}  // namespace attend

namespace emulated {
inline Index grid;
}

inline float4 make_float4(float x, float y, float z, float w) {
  return {x, y, z, w};
}
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) {
  return {x, y, z, w};
}
inline uint2 make_uint2(unsigned x, unsigned y) {
  return {x, y};
}
inline float2 make_float2(float x, float y) {
  return {x, y};
}

#define threadIdx (::emulated::block->thread().index)
#define blockIdx (::emulated::block->index())
#define gridDim (::emulated::grid)

inline void __syncthreads() {
  emulated::block_barrier(emulated::Block::kNamedBarriers - 1, emulated::block->num_threads());
}
/// Returns whether `own` is true in every thread of the block.
inline bool __syncthreads_and(bool own) {
  static bool all = true;  // one variable for all blocks, because blocks run one after another
  all = all && own;
  __syncthreads();  // waits until every thread has updated `all`, so that `all` is final
  const bool result = all;
  __syncthreads();  // waits until every thread has copied the result, so that `all` may be reset
  all = true;
  __syncthreads();  // waits until `all` is true again, so that the next vote may begin
  return result;
}
inline bool __syncthreads_or(bool own) {
  return !__syncthreads_and(!own);
}
inline void __syncwarp(unsigned = 0xffffffffu) {
  emulated::warp_barrier();
}

/// Returns the time in nanoseconds. The emulator counts one nanosecond as one clock cycle.
inline long long clock64() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

inline void __threadfence() {}
inline void __threadfence_block() {}

template <class T>
constexpr T max(T a, T b) {
  return a < b ? b : a;
}
template <class T>
constexpr T min(T a, T b) {
  return b < a ? b : a;
}

template <class T>
T __shfl_sync(unsigned, T own, int lane) {
  return emulated::words_of<T>(emulated::exchange(own), lane & 31);
}
template <class T>
T __shfl_xor_sync(unsigned, T own, int mask) {
  const int lane = emulated::block->lane();
  return emulated::words_of<T>(emulated::exchange(own), lane ^ mask);
}
template <class T>
T __shfl_up_sync(unsigned, T own, int distance) {
  const int lane = emulated::block->lane();
  return emulated::words_of<T>(emulated::exchange(own), lane < distance ? lane : lane - distance);
}
inline unsigned __ballot_sync(unsigned, bool own) {
  const auto* all = emulated::exchange(own);
  unsigned bits = 0;
  for (int lane = 0; lane < 32; ++lane) bits |= (emulated::words_of<bool>(all, lane) ? 1u : 0u) << lane;
  return bits;
}
inline bool __all_sync(unsigned mask, bool own) {
  return __ballot_sync(mask, own) == 0xffffffffu;
}
inline bool __any_sync(unsigned mask, bool own) {
  return __ballot_sync(mask, own) != 0;
}
template <class T>
T __reduce_max_sync(unsigned, T own) {
  const auto* all = emulated::exchange(own);
  for (int lane = 0; lane < 32; ++lane) own = max(own, emulated::words_of<T>(all, lane));
  return own;
}
template <class T>
T __reduce_min_sync(unsigned, T own) {
  const auto* all = emulated::exchange(own);
  for (int lane = 0; lane < 32; ++lane) own = min(own, emulated::words_of<T>(all, lane));
  return own;
}

inline unsigned __reduce_or_sync(unsigned, unsigned own) {
  const auto* all = emulated::exchange(own);
  for (int lane = 0; lane < 32; ++lane) own |= emulated::words_of<unsigned>(all, lane);
  return own;
}

inline unsigned __float_as_uint(float x) {
  return std::bit_cast<unsigned>(x);
}
inline float __int_as_float(int x) {
  return std::bit_cast<float>(x);
}
inline int __float_as_int(float x) {
  return std::bit_cast<int>(x);
}
inline float __uint_as_float(unsigned x) {
  return std::bit_cast<float>(x);
}
inline int __clz(int x) {
  return std::countl_zero(static_cast<unsigned>(x));
}
inline int __clzll(long long x) {
  return std::countl_zero(static_cast<unsigned long long>(x));
}
inline int __popc(int x) {
  return std::popcount(static_cast<unsigned>(x));
}
inline int __popcll(long long x) {
  return std::popcount(static_cast<unsigned long long>(x));
}
inline int __ffs(int x) {
  return __builtin_ffs(x);
}
inline int __ffsll(long long x) {
  return __builtin_ffsll(x);
}
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const std::uint64_t bytes = static_cast<std::uint64_t>(y) << 32 | x;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned from = selector >> 4 * i & 0xf;
    unsigned byte = static_cast<unsigned>(bytes >> 8 * (from & 7)) & 0xff;
    if (from & 8) byte = byte & 0x80 ? 0xff : 0;
    result |= byte << 8 * i;
  }
  return result;
}
inline float __fmul_rn(float a, float b) {
  return a * b;
}
inline float __fadd_rn(float a, float b) {
  return a + b;
}
inline float __fsub_rn(float a, float b) {
  return a - b;
}
inline float __fdiv_rn(float a, float b) {
  return a / b;
}
template <class T>
T __ldcg(const T* from) {
  return *from;
}
template <class T>
void __stcg(T* to, const T& x) {
  *to = x;
}
template <class T>
void __stcs(T* to, const T& x) {
  *to = x;
}
template <class T>
T __ldcs(const T* from) {
  return *from;
}
inline float __fdividef(float a, float b) {
  return a / b;
}
inline float __frcp_rn(float a) {
  return 1.0f / a;
}
inline float __fsqrt_rn(float a) {
  return std::sqrt(a);
}
inline float __double2float_rn(double a) {
  return static_cast<float>(a);
}
inline int __float2int_rn(float a) {
  return static_cast<int>(std::nearbyint(a));
}
template <class T>
T __ldg(const T* from) {
  return *from;
}
[[noreturn]] inline void __trap() {
  std::fprintf(stderr, "emulated trap\n");
  std::abort();
}
template <class T>
T atomicAdd(T* to, std::type_identity_t<T> x) {
  const T before = *to;
  *to += x;
  return before;
}
template <class T>
T atomicMax(T* to, std::type_identity_t<T> x) {
  const T before = *to;
  *to = max(before, x);
  return before;
}
template <class T>
T atomicExch(T* to, std::type_identity_t<T> x) {
  const T before = *to;
  *to = x;
  return before;
}
template <class T>
T atomicCAS(T* to, std::type_identity_t<T> wanted, std::type_identity_t<T> x) {
  const T before = *to;
  if (before == wanted) *to = x;
  return before;
}
inline std::size_t __cvta_generic_to_shared(const void* pointer) {
  return static_cast<std::size_t>(static_cast<const char*>(pointer) - attend::smem);
}
