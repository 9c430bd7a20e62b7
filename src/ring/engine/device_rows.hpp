// Rows of tensors on a GPU that have no value yet. Everything is put on the stream; the device's context has to be
// current.
#pragma once

#include <span>

#include "attend/tensor.hpp"
#include "cuda/driver/driver_types.hpp"
#include "ring/engine/written_rows.hpp"
#include "ring/plan/sharding.hpp"

namespace attend::ring {

/// Clears the memory between a message's tensors, which lie one after another: it travels with them, and so is to have
/// a value.
void clear_gaps(std::span<const Tensor> tensors, cuda::StreamHandle stream);

/// A part is about to give these rows of dense tensors; `written` says which rows of them have a value. True: the part
/// stores its rows. Otherwise it adds to them, and those without a value are cleared.
[[nodiscard]] bool stores_rows(WrittenRows& written, const Run& rows, std::span<const Tensor> dense,
                               cuda::StreamHandle stream);

/// Clears all rows of dense tensors that have no value.
void clear_unwritten(WrittenRows& written, std::span<const Tensor> dense, cuda::StreamHandle stream);

}  // namespace attend::ring
