// Arguments of ring_rows.cuh, as a plain struct that host and device share.
#pragma once

#include "../common/args.cuh"

namespace attend {

// Number of rows that a warp copies at once.
constexpr int kRingRowsOfWarp = 8;

struct RingRowsArgs {
  static constexpr const char* kTypeName = "RingRowsArgs";
  const void* from;    // (batch, heads, rows, cols)
  const float* other;  // (batch, heads, rows, cols), used if kAdds is set
  void* to;            // (batch, heads, rows, cols)
  TensorStrides from_stride;
  TensorStrides other_stride;
  TensorStrides to_stride;
  int64 all_runs;  // batch * heads * runs
  uint32 heads;
  uint32 rows;
  uint32 runs;  // number of runs of kRingRowsOfWarp rows in a head
  uint32 cols;  // a multiple of kVector
};
static_assert(sizeof(RingRowsArgs) == 3 * 8 + 3 * 24 + 8 + 4 * 4);

}  // namespace attend
