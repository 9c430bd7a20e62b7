// A tensor whose element type kernels receive at run time. Shared by host and device.
#pragma once

#include "../common/args.cuh"
#include "stored_element.cuh"

namespace attend {

constexpr int kRowRun = 4;  // columns of a lane: a row of 128 columns takes one step of a warp

struct RowsArgs {
  void* data;            // (batch, heads, rows, cols)
  TensorStrides stride;  // elements
  uint32 element;        // a StoredElement
  uint32 runs_at_once;   // addresses and columns are multiples of kRowRun elements

  [[nodiscard]] ATTEND_HOST_DEVICE constexpr StoredElement type() const { return static_cast<StoredElement>(element); }
};
static_assert(sizeof(RowsArgs) == 8 + 24 + 2 * 4);

}  // namespace attend
