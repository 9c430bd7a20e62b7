// Runs before mask_kinds. Computes bounds of each run of 64 elements in the last dimension of the captured tensors.
// These bounds decide the tiles that are empty because of documents or padding. The kernel also clears the memory in
// which the later kernels count, because a separate launch would add noticeably to the total time.
//
// Work:     A warp has a run, and each lane has two of the run's elements.
// Memory:   The kernel reads each captured element once. It writes 24 bytes for 64 elements, and zeros.
#pragma once

#include "../common/warp_reduce.cuh"
#include "../isa/grid_dependency.cuh"
#include "mask_args.cuh"
#include "mask_code.cuh"

namespace attend {

// Returns the offset of a row of a captured tensor, in elements. The number `row` is formed from the subscripts of all
// dimensions except the last.
[[nodiscard]] __device__ __forceinline__ int64 offset_of_row(const CapturedTensor& tensor, int rank, int64 row) {
  int64 offset = 0;
  for (int d = rank - 2; d >= 0; --d) {
    offset += row % tensor.extent[d] * tensor.stride[d];
    row /= tensor.extent[d];
  }
  return offset;
}

// Computes the bounds of a run. One warp calls it.
__device__ __forceinline__ void bound_run(const MaskMakerArgs& args, int capture, int64 run) {
  const CapturedTensor& tensor = args.captured[capture];
  const CaptureRanges& table = args.ranges[capture];
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  const int64 elements = table.rank == 0 ? 1 : tensor.extent[table.rank - 1];
  const int64 stride = table.rank == 0 ? 0 : tensor.stride[table.rank - 1];
  const int64 offset = offset_of_row(tensor, table.rank, run / table.runs), first = run % table.runs * kCaptureRun;
  mask_bounds::Floats all = {mask_bounds::kInfinite, -mask_bounds::kInfinite, false};
#pragma unroll
  for (int i = lane; i < kCaptureRun; i += kWarpThreads) {
    if (first + i >= elements) continue;
    const double x = MaskCode::number(capture, tensor.data, offset + (first + i) * stride);
    all = mask_bounds::hull(all, x == x ? mask_bounds::Floats{x, x, false} : mask_bounds::kAnyFloat);
  }
#pragma unroll
  for (int distance = kWarpThreads / 2; distance > 0; distance /= 2) {
    all.low = mask_bounds::lower(all.low, __shfl_xor_sync(kAllLanes, all.low, distance));
    all.high = mask_bounds::higher(all.high, __shfl_xor_sync(kAllLanes, all.high, distance));
  }
  const bool has_nan = __any_sync(kAllLanes, all.has_nan);
  if (lane == 0) table.ranges[run] = {all.low, all.high, has_nan ? 1 : 0, 0};
}

// The grid has one warp for each run of all tensors, in the order of the tensors.
template <class Config>
__device__ void mask_ranges(const MaskMakerArgs& args) {
  static_assert(Config::kThreads == kMakerThreads);
  constexpr int kWarps = kMakerThreads / kWarpThreads;
  wait_for_kernels_before();
  let_next_kernel_start();
  for (int i = static_cast<int>(blockIdx.x * kMakerThreads + threadIdx.x); i < args.num_cleared;
       i += static_cast<int>(gridDim.x) * kMakerThreads) {
    args.cleared[i] = 0;
  }
  int64 run = int64{blockIdx.x} * kWarps + static_cast<int>(threadIdx.x) / kWarpThreads;
#pragma unroll 1
  for (int capture = 0; capture < kMostCaptured; ++capture) {
    const CaptureRanges& table = args.ranges[capture];
    const int64 runs = table.ranges == nullptr ? 0 : table.rows * table.runs;
    if (run < runs) return bound_run(args, capture, run);
    run -= runs;
  }
}

}  // namespace attend
