// Declarations of the types in the CUDA driver API that this library uses, so that building it requires no CUDA
// headers. The layouts and numbers are the documented binary interface of libcuda (CUDA driver API reference, 12.0 and
// later).
#pragma once

#include <cstddef>
#include <cstdint>

namespace attend::cuda {

using DriverResult = int;  // CUresult; 0 means success
using DeviceIndex = int;   // CUdevice
using DevicePointer = std::uint64_t;

using ContextHandle = struct ContextTag*;    // CUcontext
using ModuleHandle = struct ModuleTag*;      // CUmodule
using FunctionHandle = struct FunctionTag*;  // CUfunction
using StreamHandle = struct StreamTag*;      // CUstream; null means the default stream
using GraphHandle = struct GraphTag*;        // CUgraph
using UserObjectHandle = struct ObjectTag*;  // CUuserObject
using EventHandle = struct EventTag*;        // CUevent
using MemoryPoolHandle = struct PoolTag*;    // CUmemoryPool

/// CUipcMemHandle and CUipcEventHandle: a handle with which another process on the same machine opens memory or an
/// event.
struct IpcHandle {
  unsigned char reserved[64];
};

/// CUdevice_attribute
enum class DeviceAttribute : int {
  kMaxSmemPerBlock = 8,
  kMultiprocessorCount = 16,
  kMemoryClockKiloHertz = 36,
  kMemoryBusBits = 37,
  kL2CacheBytes = 38,
  kComputeCapabilityMajor = 75,
  kComputeCapabilityMinor = 76,
  kMaxSmemPerMultiprocessor = 81,
  kMaxSmemPerBlockOptin = 97,
  kMemoryPoolsSupported = 115,
};

/// CUfunction_attribute
enum class FunctionAttribute : int {
  kStaticSmemBytes = 1,
  kLocalBytes = 3,
  kNumRegisters = 4,
  kMaxDynamicSmemBytes = 8,
};

/// CUmemPoolProps
struct MemoryPoolProperties {
  static constexpr int kPinned = 1;  // CUmemAllocationType: pinned
  static constexpr int kDevice = 1;  // CUmemLocationType

  int allocation_type;
  int handle_types;  // 0 if the memory cannot be shared with other processes
  int location_type;
  int location_id;
  void* security_attributes;
  std::size_t max_bytes;  // 0 if the size is not limited
  unsigned char reserved[56];
};
static_assert(sizeof(MemoryPoolProperties) == 88);

/// CUmemPool_attribute. All values are 64-bit byte counts. The only value to which a peak can be set is 0.
enum class MemoryPoolAttribute : int {
  kReleaseThreshold = 4,
  kReserved = 5,
  kReservedPeak = 6,
  kUsed = 7,
  kUsedPeak = 8,
};

/// CUlaunchAttribute, with the two attributes that this library uses.
struct LaunchAttribute {
  static constexpr int kClusterDimension = 4;
  static constexpr int kProgrammaticStreamSerialization = 6;

  struct Cluster {
    unsigned x, y, z;
  };
  union Value {
    char pad[64];
    Cluster cluster;
    int flag;
  };

  int id;
  char pad[8 - sizeof(int)];
  Value value;
};
static_assert(sizeof(LaunchAttribute) == 72);

/// CUlaunchConfig
struct DriverLaunchConfig {
  unsigned grid_x, grid_y, grid_z;     // blocks
  unsigned block_x, block_y, block_z;  // threads
  unsigned dynamic_smem_bytes;
  StreamHandle stream;
  LaunchAttribute* attributes;  // may be null
  unsigned num_attributes;
};
static_assert(sizeof(DriverLaunchConfig) == 56);

/// CUtensorMap: the descriptor that TMA instructions read. It is passed to a kernel as a __grid_constant__ parameter.
struct alignas(64) TensorMap {
  std::uint64_t opaque[16];
};
static_assert(sizeof(TensorMap) == 128);

/// CUtensorMapDataType
enum class TensorMapType : int { kUint8 = 0, kFloat16 = 6, kFloat32 = 7, kBfloat16 = 9 };

/// CUtensorMapSwizzle: the size of the shared memory rows within which TMA permutes units of 16 bytes.
enum class TensorMapSwizzle : int { kNone = 0, k32Bytes = 1, k64Bytes = 2, k128Bytes = 3 };

/// CUtensorMapL2promotion: number of bytes that each load brings into the L2 cache.
enum class TensorMapPromotion : int { kNone = 0, k64Bytes = 1, k128Bytes = 2, k256Bytes = 3 };

}  // namespace attend::cuda
