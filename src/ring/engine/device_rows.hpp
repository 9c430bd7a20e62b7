// Tracks rows of GPU tensors that have no value yet. All work is queued on the stream; the device's context must be
// current.
#pragma once

#include <span>

#include "attend/tensor.hpp"
#include "cuda/driver/driver_types.hpp"
#include "ring/engine/written_rows.hpp"
#include "ring/plan/sharding.hpp"

namespace attend::ring {

/// Clears the gaps between a message's tensors, which are stored one after another. The gaps are sent too, so they need
/// a defined value.
void clear_gaps(std::span<const Tensor> tensors, cuda::StreamHandle stream);

/// Call before a part writes these rows of dense tensors. `written` records the rows that have a value. Returns true if
/// the part must store its rows. Otherwise the part must add to them, and the function clears rows without a value.
[[nodiscard]] bool stores_rows(WrittenRows& written, const Run& rows, std::span<const Tensor> dense,
                               cuda::StreamHandle stream);

/// Clears all rows of dense tensors that have no value.
void clear_unwritten(WrittenRows& written, std::span<const Tensor> dense, cuda::StreamHandle stream);

}  // namespace attend::ring
