// The compile-time parameters of a decode kernel, and their choice for a problem.
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
  std::int32_t row_factors = 0;  ///< whether each row of an 8-bit cache has separate scaling factors
  /// Whether TMA loads keys and values in boxes; a box is a group of adjacent rows that one copy loads.
  std::int32_t has_boxes = 0;
  std::int32_t by_warpgroup = 0;  ///< whether the kernel uses wgmma with tiles of 64 query rows
  std::int32_t column_parts = 1;  ///< 1, or 2 if two warpgroups each compute half of the columns of o
  std::int32_t rows = 8;
  std::int32_t row_parts = 1;
  std::int32_t half_rows = 0;  ///< whether at most 4 rows of a tile of 8 rows are valid
  std::int32_t slots = 2;
  std::int32_t stack_nodes = 0;
  std::int32_t blocks = 1;       ///< resident blocks per multiprocessor
  std::int32_t many_units = 0;   ///< whether the numbers of work units need 64 bits
  std::int32_t leaves_room = 0;  ///< whether another kernel computes sequences with many query rows at the same time

  [[nodiscard]] DecodeTile tile() const;
};

/// GPU properties on which the choice depends.
struct DecodeGpu {
  int max_smem = 0;  ///< largest shared memory of a block in bytes
  int multiprocessors = 1;
  bool has_copy_engine = false;  ///< whether the GPU has TMA
  bool has_wgmma = false;
  /// Number of bytes per multiprocessor that must be requested but not yet received, to use the full memory bandwidth.
  int bytes_in_flight = 96 * 1024;

  [[nodiscard]] static DecodeGpu of(const DeviceInfo& device);
};

/// Returns the variant for a problem.
/// @param leaves_long_rows  whether another kernel computes sequences with many query rows
/// @throws Error (kUnsupported) if no kernel supports the problem. The message names the first unsupported argument.
[[nodiscard]] DecodeVariant decode_variant(const core::DecodeProblem& p, const DecodeGpu& gpu, bool leaves_long_rows);

/// Returns the number of keys in a box, which is what one TMA copy loads. It is a power of two that divides the page
/// size.
[[nodiscard]] std::int64_t decode_box_rows(const core::DecodeProblem& p);

[[nodiscard]] KernelSpec decode_spec(const DecodeVariant& variant, const char* arch);

/// Returns the specs of example kernels that the architecture supports. Used by the tests.
[[nodiscard]] std::vector<KernelSpec> decode_specs(const Arch& arch);

}  // namespace attend::cuda
