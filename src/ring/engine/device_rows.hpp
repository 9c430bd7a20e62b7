// Initialises rows of GPU tensors that have no value yet. All work is queued on the stream. The device's context must
// be current.
#pragma once

#include <span>

#include "attend/tensor.hpp"
#include "cuda/driver/driver_types.hpp"
#include "ring/engine/written_rows.hpp"
#include "ring/plan/sharding.hpp"

namespace attend::ring {

/// Sets the gaps between the tensors of a message to 0. The gaps need a defined value, because they are sent together
/// with the tensors.
void clear_gaps(std::span<const Tensor> tensors, cuda::StreamHandle stream);

/// Must be called before a part writes the given rows of dense tensors. `written` records the rows that have a value.
/// If none of the rows has a value, returns true, and the part must store its results. Otherwise sets the rows without
/// a value to 0 and returns false, and the part must add its results.
[[nodiscard]] bool stores_rows(WrittenRows& written, const Run& rows, std::span<const Tensor> dense,
                               cuda::StreamHandle stream);

/// Sets all rows of dense tensors that have no value to 0.
void clear_unwritten(WrittenRows& written, std::span<const Tensor> dense, cuda::StreamHandle stream);

}  // namespace attend::ring
