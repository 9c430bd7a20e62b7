#include "cuda/driver/kernel.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "attend/error.hpp"
#include "cuda/driver/device.hpp"
#include "cuda/driver/driver.hpp"

namespace attend::cuda {
namespace {

// Largest dynamic shared memory in bytes that a kernel can use without opting in.
constexpr unsigned kSmemWithoutAsking = 48 * 1024;

std::string text(const Dim3& d) {
  return fmt::format("({}, {}, {})", d.x, d.y, d.z);
}

}  // namespace

Kernel::Kernel(int device, std::span<const std::byte> cubin, const std::string& entry, std::string name,
               unsigned dynamic_smem_bytes)
    : device_(device), name_(std::move(name)), dynamic_smem_bytes_(dynamic_smem_bytes) {
  const Driver& d = driver();
  const ContextGuard guard(device);
  const std::string doing = fmt::format("loading {} on device {}", name_, device);
  check_call(d.module_load_data(&module_, cubin.data()), "cuModuleLoadData", doing);
  try {
    check_call(d.module_get_function(&function_, module_, entry.c_str()), "cuModuleGetFunction",
               doing + ", entry " + entry);
    if (dynamic_smem_bytes > kSmemWithoutAsking) {
      check_call(d.function_set_attribute(function_, FunctionAttribute::kMaxDynamicSmemBytes,
                                          static_cast<int>(dynamic_smem_bytes)),
                 "cuFuncSetAttribute", fmt::format("{}, {} bytes of dynamic shared memory", doing, dynamic_smem_bytes));
    }
  } catch (...) {
    d.module_unload(module_);
    throw;
  }
}

Kernel::~Kernel() {
  try {
    const ContextGuard guard(device_);
    driver().module_unload(module_);
  } catch (const Error&) {
    // The driver has already shut down. It has then unloaded the module too.
  }
}

void Kernel::launch(const LaunchShape& shape, std::span<void*> arguments, StreamHandle stream) const {
  LaunchAttribute attributes[2] = {};
  unsigned num_attributes = 0;
  if (shape.cluster.x * shape.cluster.y * shape.cluster.z > 1) {
    LaunchAttribute& cluster = attributes[num_attributes++];
    cluster.id = LaunchAttribute::kClusterDimension;
    cluster.value.cluster = {shape.cluster.x, shape.cluster.y, shape.cluster.z};
  }
  if (shape.overlaps_previous) {
    LaunchAttribute& overlap = attributes[num_attributes++];
    overlap.id = LaunchAttribute::kProgrammaticStreamSerialization;
    overlap.value.flag = 1;
  }
  const DriverLaunchConfig config = {.grid_x = shape.grid.x,
                                     .grid_y = shape.grid.y,
                                     .grid_z = shape.grid.z,
                                     .block_x = shape.block.x,
                                     .block_y = shape.block.y,
                                     .block_z = shape.block.z,
                                     .dynamic_smem_bytes = shape.dynamic_smem_bytes,
                                     .stream = stream,
                                     .attributes = num_attributes > 0 ? attributes : nullptr,
                                     .num_attributes = num_attributes};
  if (shape.dynamic_smem_bytes > dynamic_smem_bytes_) {
    throw Error(ErrorCode::kInternal, fmt::format("{}: {} bytes of dynamic shared memory, loaded for {}", name_,
                                                  shape.dynamic_smem_bytes, dynamic_smem_bytes_));
  }
  const DriverResult result = driver().launch_kernel(&config, function_, arguments.data(), nullptr);
  if (result != 0) {
    fail_call(result, "cuLaunchKernelEx",
              fmt::format("launching {} on device {}: grid {}, block {}, cluster {}, {} bytes of dynamic shared memory",
                          name_, device_, text(shape.grid), text(shape.block), text(shape.cluster),
                          shape.dynamic_smem_bytes));
  }
}

TensorMap encode_tensor_map(const TensorMapSpec& spec) {
  const Driver& d = driver();
  if (d.tensor_map_encode_tiled == nullptr) {
    throw Error(ErrorCode::kMissingHardware,
                fmt::format("{}: has no cuTensorMapEncodeTiled: install a newer driver", d.path));
  }
  constexpr std::uint32_t kUnitStrides[TensorMapSpec::kMaxRank] = {1, 1, 1, 1, 1};
  TensorMap map = {};
  auto* address = reinterpret_cast<void*>(spec.address);  // NOLINT(performance-no-int-to-ptr): as the driver wants it
  const DriverResult result =
      d.tensor_map_encode_tiled(&map, spec.type, static_cast<std::uint32_t>(spec.rank), address, spec.dims,
                                spec.strides, spec.box, kUnitStrides, 0, spec.swizzle, spec.promotion, 0);
  if (result != 0) {
    const auto rank = static_cast<std::size_t>(spec.rank);
    fail_call(result, "cuTensorMapEncodeTiled",
              fmt::format("describing address {:#x}, dims ({}), strides ({}) bytes, box ({}), swizzle {}", spec.address,
                          fmt::join(std::span(spec.dims).first(rank), ", "),
                          fmt::join(std::span(spec.strides).first(rank - 1), ", "),
                          fmt::join(std::span(spec.box).first(rank), ", "), static_cast<int>(spec.swizzle)));
  }
  return map;
}

}  // namespace attend::cuda
