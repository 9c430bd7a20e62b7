// Tensor maps, by which the copy engine moves tiles of rows.
#pragma once

#include <optional>

#include "core/lack.hpp"
#include "core/problem.hpp"
#include "cuda/driver/driver_types.hpp"
#include "kernels/common/args.cuh"

namespace attend::cuda {

/// The map of a tensor as (head_dim, seqlen, heads, batch), with boxes of 128 bytes of columns and `rows` rows,
/// swizzled in rows of 128 bytes. Elements outside read as 0.
/// @param somewhere  any address of the device's, for a tensor without elements, which may have none
/// @param promotion  what a load brings into the L2 cache around what it wants
[[nodiscard]] TensorMapArg row_map(const Tensor& t, int rows, const void* somewhere,
                                   TensorMapPromotion promotion = TensorMapPromotion::k256Bytes);

/// Has the tensor such a map? Its address and strides have to be as tensor_map_lack() says.
[[nodiscard]] bool has_row_map(const Tensor& t);

/// The same with dimensions (64, seqlen, head_dim / 64, heads, batch): one copy brings all columns, panel after panel.
[[nodiscard]] TensorMapArg panel_map(const Tensor& t, int rows, const void* somewhere);

/// A tensor that the copy engine cannot move: addresses and strides have to be multiples of 16 bytes, and no dimension
/// longer than one may have stride 0.
[[nodiscard]] std::optional<core::Lack> tensor_map_lack(const core::Problem& p);

/// The bias as it is stored: with one element of each dimension along which it is broadcast.
[[nodiscard]] Tensor stored_bias(const core::Problem& p);
/// Why the copy engine cannot move the problem's bias: as tensor_map_lack().
[[nodiscard]] std::optional<core::Lack> bias_map_lack(const core::Problem& p);
/// Why its gradient cannot be stored in pieces of 16 bytes: likewise.
[[nodiscard]] std::optional<core::Lack> dbias_map_lack(const core::Problem& p);

}  // namespace attend::cuda
