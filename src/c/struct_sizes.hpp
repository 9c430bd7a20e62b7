// Sizes of the structs of the C interface in the first version of the ABI, for 64-bit processors. These numbers never
// change, even if a struct grows.
#pragma once

#include "c/boundary.hpp"

namespace attend::c {

template <>
inline constexpr std::size_t kFirstSize<attend_varlen> = 48;
template <>
inline constexpr std::size_t kFirstSize<attend_params> = 152;
template <>
inline constexpr std::size_t kFirstSize<attend_forward_call> = 64;
template <>
inline constexpr std::size_t kFirstSize<attend_backward_call> = 120;
template <>
inline constexpr std::size_t kFirstSize<attend_backend_info> = 32;
template <>
inline constexpr std::size_t kFirstSize<attend_page_table> = 40;
template <>
inline constexpr std::size_t kFirstSize<attend_cache_index> = 56;
template <>
inline constexpr std::size_t kFirstSize<attend_decode_params> = 112;
template <>
inline constexpr std::size_t kFirstSize<attend_decode_call> = 72;
template <>
inline constexpr std::size_t kFirstSize<attend_rotary> = 48;
template <>
inline constexpr std::size_t kFirstSize<attend_append_call> = 160;
template <>
inline constexpr std::size_t kFirstSize<attend_merge_call> = 64;
template <>
inline constexpr std::size_t kFirstSize<attend_ring_params> = 24;
template <>
inline constexpr std::size_t kFirstSize<attend_ring_callbacks> = 64;
template <>
inline constexpr std::size_t kFirstSize<attend_shard_part> = 40;
template <>
inline constexpr std::size_t kFirstSize<attend_ring_problem> = 80;

// These structs have no struct_size and must never change.
static_assert(sizeof(attend_error) == 1024 && sizeof(attend_tensor) == 88 && sizeof(attend_partial_state) == 16);

static_assert(ATTEND_OK == 0 && ATTEND_INVALID_ARGUMENT == 1 && ATTEND_UNSUPPORTED == 2 &&
              ATTEND_MISSING_HARDWARE == 3 && ATTEND_IO == 4 && ATTEND_INTERNAL == 5 && ATTEND_OUT_OF_MEMORY == 6);

// The numbers must equal those of the C++ enumerators.
static_assert(ATTEND_F32 == static_cast<int>(DType::kF32) && ATTEND_F16 == static_cast<int>(DType::kF16) &&
              ATTEND_BF16 == static_cast<int>(DType::kBF16) && ATTEND_F64 == static_cast<int>(DType::kF64) &&
              ATTEND_BOOL == static_cast<int>(DType::kBool) && ATTEND_F8E4M3 == static_cast<int>(DType::kF8E4M3) &&
              ATTEND_I8 == static_cast<int>(DType::kI8));
static_assert(ATTEND_CPU == static_cast<int>(DeviceType::kCPU) && ATTEND_CUDA == static_cast<int>(DeviceType::kCUDA));

}  // namespace attend::c
