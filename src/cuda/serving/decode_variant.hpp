// What a decode kernel is compiled for, and which one takes a problem.
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
  std::int32_t row_factors = 0;   ///< each row of a cache of 8 bits has factors of its own
  std::int32_t has_boxes = 0;     ///< the copy engine brings keys and values
  std::int32_t by_warpgroup = 0;  ///< by wgmma, whose tiles have 64 query rows
  std::int32_t column_parts = 1;  ///< 2: of two warpgroups each has half of the columns of o
  std::int32_t rows = 8;
  std::int32_t row_parts = 1;
  std::int32_t half_rows = 0;  ///< a tile of 8 rows has 4 at most
  std::int32_t slots = 2;
  std::int32_t stack_nodes = 0;
  std::int32_t blocks = 1;       ///< of a multiprocessor
  std::int32_t many_units = 0;   ///< work is numbered in 64 bits
  std::int32_t leaves_room = 0;  ///< long rows are left to another kernel, which runs beside this one

  [[nodiscard]] DecodeTile tile() const;
};

/// What the choice depends on, of a GPU.
struct DecodeGpu {
  int max_smem = 0;  ///< bytes that a block may have
  int multiprocessors = 1;
  bool has_copy_engine = false;  ///< that brings boxes
  bool has_wgmma = false;
  /// Of a multiprocessor: so many bytes under way keep the memory busy.
  int bytes_in_flight = 96 * 1024;

  [[nodiscard]] static DecodeGpu of(const DeviceInfo& device);
};

/// @param leaves_long_rows  sequences with many rows are another kernel's
/// @throws Error (kUnsupported) naming the first argument that no kernel takes.
[[nodiscard]] DecodeVariant decode_variant(const core::DecodeProblem& p, const DecodeGpu& gpu, bool leaves_long_rows);

/// Rows of a box of keys: a power of two, of which pages are multiples.
[[nodiscard]] std::int64_t decode_box_rows(const core::DecodeProblem& p);

[[nodiscard]] KernelSpec decode_spec(const DecodeVariant& variant, const char* arch);

/// A kernel of every kind that runs on the architecture, for the tests.
[[nodiscard]] std::vector<KernelSpec> decode_specs(const Arch& arch);

}  // namespace attend::cuda
