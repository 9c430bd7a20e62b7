// Tensor maps, with which the copy engine moves tiles of rows.
#pragma once

#include <optional>

#include "core/lack.hpp"
#include "core/problem.hpp"
#include "cuda/driver/driver_types.hpp"
#include "kernels/common/args.cuh"

namespace attend::cuda {

/// Returns the map of a tensor with dimensions (head_dim, seqlen, heads, batch). Its boxes have `rows` rows and 128
/// bytes of columns, with the 128-byte swizzle. Elements outside the tensor read as 0.
/// @param somewhere  any device address; used for a tensor without elements, which may have no address
/// @param promotion  number of bytes that each load brings into the L2 cache
[[nodiscard]] TensorMapArg row_map(const Tensor& t, int rows, const void* somewhere,
                                   TensorMapPromotion promotion = TensorMapPromotion::k256Bytes);

/// Returns whether the tensor can have such a map. tensor_map_lack() documents the limits for its address and strides.
[[nodiscard]] bool has_row_map(const Tensor& t);

/// Returns a map with dimensions (64, seqlen, head_dim / 64, heads, batch). One copy loads all columns, panel after
/// panel.
[[nodiscard]] TensorMapArg panel_map(const Tensor& t, int rows, const void* somewhere);

/// Refuses a tensor that the copy engine cannot move. Addresses and strides must be multiples of 16 bytes. Only
/// dimensions of length 1 may have stride 0.
[[nodiscard]] std::optional<core::Lack> tensor_map_lack(const core::Problem& p);

/// Returns the bias as it is stored: broadcast dimensions have length 1.
[[nodiscard]] Tensor stored_bias(const core::Problem& p);
/// Returns the reason why the copy engine cannot move the bias, under the limits of tensor_map_lack().
[[nodiscard]] std::optional<core::Lack> bias_map_lack(const core::Problem& p);
/// Returns the reason why dbias cannot be stored in units of 16 bytes, under the same limits.
[[nodiscard]] std::optional<core::Lack> dbias_map_lack(const core::Problem& p);

}  // namespace attend::cuda
