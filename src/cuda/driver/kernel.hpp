// Loads a cubin and launches its kernel.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "cuda/driver/driver_types.hpp"

namespace attend::cuda {

struct Dim3 {
  unsigned x = 1, y = 1, z = 1;
};

/// Shape of one launch.
struct LaunchShape {
  Dim3 grid = {};                   ///< in blocks; x < 2^31, y and z < 65536
  Dim3 block = {};                  ///< in threads
  Dim3 cluster = {};                ///< in blocks; must divide the grid. {1, 1, 1}: no clusters
  unsigned dynamic_smem_bytes = 0;  ///< may exceed 48 KiB
  /// The kernel may start before the previous kernel in the stream has ended. It must wait for that kernel itself.
  bool overlaps_previous = false;
};

/// A kernel loaded on a device. Thread-safe.
class Kernel {
 public:
  /// Loads `cubin` into the primary context of `device` and finds its function `entry`.
  /// @param name  kernel and Config, for error messages
  /// @param dynamic_smem_bytes  largest dynamic shared memory of any launch. The limit is set here, once. If launches
  ///         set it, a small launch could lower the limit of a large launch in another thread
  Kernel(int device, std::span<const std::byte> cubin, const std::string& entry, std::string name,
         unsigned dynamic_smem_bytes);
  ~Kernel();
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;

  /// Launches the kernel on `stream` asynchronously. The device must be current (ContextGuard).
  /// @param arguments  addresses of the kernel's parameters, in order; the values are copied before the call returns
  /// @throws Error (kInternal) with the kernel, the call, CUDA's error and the shape.
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

/// Describes a tensor of up to five dimensions for TMA, fastest dimension first.
struct TensorMapSpec {
  static constexpr int kMaxRank = 5;

  TensorMapType type = TensorMapType::kBfloat16;
  int rank = 2;
  DevicePointer address = 0;                 ///< a multiple of 16
  std::uint64_t dims[kMaxRank] = {};         ///< in elements
  std::uint64_t strides[kMaxRank - 1] = {};  ///< strides of dimensions 1, 2, ... in bytes; multiples of 16
  std::uint32_t box[kMaxRank] = {};          ///< size of one copy in elements; at most 256 per dimension
  TensorMapSwizzle swizzle = TensorMapSwizzle::k128Bytes;
  TensorMapPromotion promotion = TensorMapPromotion::k256Bytes;
};

/// Returns the descriptor of `spec`. Elements outside the tensor read as 0.
/// @throws Error (kInternal) with all of `spec` if the driver refuses it; (kMissingHardware) if the driver is too old.
[[nodiscard]] TensorMap encode_tensor_map(const TensorMapSpec& spec);

}  // namespace attend::cuda
