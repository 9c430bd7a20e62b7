// Machine code that a device can run: loading a cubin, and launching its kernel.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "cuda/driver/driver_types.hpp"

namespace attend::cuda {

struct Dim3 {
  unsigned x = 1, y = 1, z = 1;
};

/// The shape of one launch.
struct LaunchShape {
  Dim3 grid = {};                   ///< blocks; x < 2^31, y and z < 65536
  Dim3 block = {};                  ///< threads
  Dim3 cluster = {};                ///< blocks; {1, 1, 1}: no clusters. Divides the grid
  unsigned dynamic_smem_bytes = 0;  ///< more than 48 KiB is allowed
  bool overlaps_previous = false;   ///< may start before the kernel before it in the stream has ended; it waits itself
};

/// One kernel on one device. Thread-safe.
class Kernel {
 public:
  /// Loads `cubin` into the primary context of `device` and finds `entry` in it.
  /// @param name         what errors call it: the kernel and its Config
  /// @param dynamic_smem_bytes  the most dynamic shared memory that a launch will ask for. It is granted here, once:
  ///                     setting it at launches would let a small one take it away from a large one in another thread
  Kernel(int device, std::span<const std::byte> cubin, const std::string& entry, std::string name,
         unsigned dynamic_smem_bytes);
  ~Kernel();
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;

  /// Puts the kernel on `stream`, asynchronously. The caller has made the device current (ContextGuard).
  /// @param arguments  addresses of the kernel's parameters, in their order; copied before the call returns
  /// @throws Error (kInternal) naming the kernel, the call, CUDA's error and the shape.
  void launch(const LaunchShape& shape, std::span<void*> arguments, StreamHandle stream) const;

  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] int device() const noexcept { return device_; }
  [[nodiscard]] FunctionHandle function() const noexcept { return function_; }

 private:
  int device_ = 0;
  std::string name_;
  unsigned dynamic_smem_bytes_ = 0;
  ModuleHandle module_ = nullptr;
  FunctionHandle function_ = nullptr;
};

/// What TMA needs to know of a tensor of up to five dimensions, the fastest first.
struct TensorMapSpec {
  static constexpr int kMaxRank = 5;

  TensorMapType type = TensorMapType::kBfloat16;
  int rank = 2;
  DevicePointer address = 0;                 ///< a multiple of 16
  std::uint64_t dims[kMaxRank] = {};         ///< elements
  std::uint64_t strides[kMaxRank - 1] = {};  ///< bytes between neighbours in dimension 1, 2, ...; multiples of 16
  std::uint32_t box[kMaxRank] = {};          ///< elements that one copy moves, at most 256 in each dimension
  TensorMapSwizzle swizzle = TensorMapSwizzle::k128Bytes;
  TensorMapPromotion promotion = TensorMapPromotion::k256Bytes;
};

/// The descriptor of `spec`. Elements outside the tensor read as 0.
/// @throws Error (kInternal) with all of `spec` where the driver refuses it; (kMissingHardware) where it is too old.
[[nodiscard]] TensorMap encode_tensor_map(const TensorMapSpec& spec);

}  // namespace attend::cuda
