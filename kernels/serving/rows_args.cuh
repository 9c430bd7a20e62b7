// A tensor whose element type a kernel receives at run time. Host and device share this file.
#pragma once

#include "../common/args.cuh"
#include "stored_element.cuh"

namespace attend {

constexpr int kRowRun = 4;  // number of neighbouring columns of a lane. A warp covers 128 columns in one step

struct RowsArgs {
  void* data;            // (batch, heads, rows, cols)
  TensorStrides stride;  // in elements
  uint32 element;        // value of a StoredElement
  uint32 runs_at_once;   // 1 if the address, the strides and the number of columns are multiples of kRowRun elements

  [[nodiscard]] ATTEND_HOST_DEVICE constexpr StoredElement type() const { return static_cast<StoredElement>(element); }
};
static_assert(sizeof(RowsArgs) == 8 + 24 + 2 * 4);

}  // namespace attend
