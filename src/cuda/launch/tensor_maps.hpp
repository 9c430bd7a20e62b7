// Tensor maps. A tensor map is the descriptor with which TMA (the copy engine) copies tiles of a tensor.
#pragma once

#include <optional>

#include "core/lack.hpp"
#include "core/problem.hpp"
#include "cuda/driver/driver_types.hpp"
#include "kernels/common/args.cuh"

namespace attend::cuda {

/// Returns the tensor map of a tensor with dimensions (head_dim, seqlen, heads, batch). One copy loads `rows` rows and
/// 128 bytes of columns, with the 128-byte swizzle. Elements outside the tensor are loaded as 0.
/// @param somewhere  any device address. It replaces the address of a tensor without elements, which may be null
/// @param promotion  number of bytes that each load brings into the L2 cache
[[nodiscard]] TensorMapArg row_map(const Tensor& t, int rows, const void* somewhere,
                                   TensorMapPromotion promotion = TensorMapPromotion::k256Bytes);

/// Returns whether the address and the strides of the tensor allow such a map. tensor_map_lack() documents the limits.
[[nodiscard]] bool has_row_map(const Tensor& t);

/// Returns a tensor map with dimensions (64, seqlen, head_dim / 64, heads, batch). A panel is 64 columns wide. One copy
/// loads all panels of `rows` rows, one panel after another.
[[nodiscard]] TensorMapArg panel_map(const Tensor& t, int rows, const void* somewhere);

/// Refuses a problem with a tensor that TMA cannot copy. All addresses and strides must be multiples of 16 bytes.
/// Stride 0 is allowed only in dimensions of length 1.
[[nodiscard]] std::optional<core::Lack> tensor_map_lack(const core::Problem& p);

/// Returns the bias with its shape in memory: broadcast dimensions have length 1.
[[nodiscard]] Tensor stored_bias(const core::Problem& p);
/// Returns the reason why TMA cannot load the bias, or nothing. The limits are those of tensor_map_lack().
[[nodiscard]] std::optional<core::Lack> bias_map_lack(const core::Problem& p);
/// Returns the reason why the kernels cannot store dbias in units of 16 bytes, or nothing. The limits are those of
/// tensor_map_lack().
[[nodiscard]] std::optional<core::Lack> dbias_map_lack(const core::Problem& p);

}  // namespace attend::cuda
