// Compile-time facts of a decode kernel, and the choice of the kernel for a problem.
#pragma once

#include <cstdint>
#include <vector>

#include "core/decode_problem.hpp"
#include "cuda/driver/arch.hpp"
#include "cuda/driver/device.hpp"
#include "cuda/jit/kernel_spec.hpp"
#include "kernels/common/config_enums.cuh"
#include "kernels/serving/decode_shape.cuh"

namespace attend::cuda {

struct DecodeVariant {
  ElementType element = ElementType::kBF16;
  CacheElement cache_element = CacheElement::kSame;
  std::int32_t head_dim = 128;
  std::int32_t head_dim_v = 128;
  std::int32_t values_are_keys = 0;
  std::int32_t aligned = 1;
  std::int32_t row_factors = 0;   ///< each row of an 8-bit cache has its own scaling factors
  std::int32_t has_boxes = 0;     ///< the copy engine loads keys and values
  std::int32_t by_warpgroup = 0;  ///< uses wgmma with tiles of 64 query rows
  std::int32_t column_parts = 1;  ///< 2: each of two warpgroups has half of the columns of o
  std::int32_t rows = 8;
  std::int32_t row_parts = 1;
  std::int32_t half_rows = 0;  ///< a tile of 8 rows has at most 4 real rows
  std::int32_t slots = 2;
  std::int32_t stack_nodes = 0;
  std::int32_t blocks = 1;       ///< blocks per multiprocessor
  std::int32_t many_units = 0;   ///< work units have 64-bit numbers
  std::int32_t leaves_room = 0;  ///< another kernel computes long rows at the same time

  [[nodiscard]] DecodeTile tile() const;
};

/// GPU properties that the choice depends on.
struct DecodeGpu {
  int max_smem = 0;  ///< largest shared memory of a block in bytes
  int multiprocessors = 1;
  bool has_copy_engine = false;  ///< the GPU has a copy engine for boxes (TMA)
  bool has_wgmma = false;
  /// Bytes in transfer per multiprocessor that keep the memory busy.
  int bytes_in_flight = 96 * 1024;

  [[nodiscard]] static DecodeGpu of(const DeviceInfo& device);
};

/// @param leaves_long_rows  another kernel computes sequences with many rows
/// @throws Error (kUnsupported) naming the first argument that no kernel supports.
[[nodiscard]] DecodeVariant decode_variant(const core::DecodeProblem& p, const DecodeGpu& gpu, bool leaves_long_rows);

/// Returns the rows of a key box: a power of two that divides the page size.
[[nodiscard]] std::int64_t decode_box_rows(const core::DecodeProblem& p);

[[nodiscard]] KernelSpec decode_spec(const DecodeVariant& variant, const char* arch);

/// Returns one kernel of every kind that the architecture supports, for the tests.
[[nodiscard]] std::vector<KernelSpec> decode_specs(const Arch& arch);

}  // namespace attend::cuda
