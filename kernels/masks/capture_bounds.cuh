// Bounds of the elements of a captured tensor over ranges of subscripts. The generated bounds code of a mask function
// loads them. The bounds are computed from those of runs of 64 elements, which mask_ranges.cuh wrote.
#pragma once

#include "mask_args.cuh"
#include "mask_bounds.cuh"

namespace attend {

struct CaptureBounds {
  const CapturedTensor* tensors;
  const CaptureRanges* tables;

  template <int kNumber, class... Subscripts>
  [[nodiscard]] __device__ __forceinline__ mask_bounds::Floats floats(Subscripts... subscripts) const {
    return hull_of<kNumber>(subscripts...);
  }
  template <int kNumber, class... Subscripts>
  [[nodiscard]] __device__ __forceinline__ mask_bounds::Ints ints(Subscripts... subscripts) const {
    const mask_bounds::Floats all = hull_of<kNumber>(subscripts...);
    if (all.low < mask_bounds::kLeastInt || all.high > mask_bounds::kMostInt) return mask_bounds::kAnyInt;
    return {static_cast<int>(all.low), static_cast<int>(all.high)};
  }
  template <int kNumber, class... Subscripts>
  [[nodiscard]] __device__ __forceinline__ mask_bounds::Bools bools(Subscripts... subscripts) const {
    const mask_bounds::Floats all = hull_of<kNumber>(subscripts...);
    return {all.low > 0, all.high > 0};
  }

 private:
  // Largest number of runs that are read. A 64 x 64 tile needs one or two runs, or three if a subscript is q - k. If
  // more runs are needed, the bounds are unlimited.
  static constexpr int kMostRuns = 8;

  // Clamps subscripts to the tensor's extent, as the mask function does.
  [[nodiscard]] static __device__ __forceinline__ mask_bounds::Ints within(mask_bounds::Ints subscripts, int extent) {
    const auto of = [extent](int x) { return x < 0 ? 0 : x < extent ? x : extent - 1; };
    return {of(subscripts.low), of(subscripts.high)};
  }

  template <int kNumber, class... Subscripts>
  [[nodiscard]] __device__ __forceinline__ mask_bounds::Floats hull_of(Subscripts... subscripts) const {
    constexpr int kRank = int{sizeof...(subscripts)};
    const CapturedTensor& tensor = tensors[kNumber];
    const CaptureRanges& table = tables[kNumber];
    if (table.ranges == nullptr) return mask_bounds::kAnyFloat;
    const mask_bounds::Ints given[kRank + 1] = {subscripts..., {0, 0}};
    int64 row = 0;
#pragma unroll
    for (int d = 0; d + 1 < kRank; ++d) {
      const mask_bounds::Ints at = within(given[d], tensor.extent[d]);
      if (at.low != at.high) return mask_bounds::kAnyFloat;
      row = row * tensor.extent[d] + at.low;
    }
    int first = 0, last = 0;
    if constexpr (kRank > 0) {
      const mask_bounds::Ints at = within(given[kRank - 1], tensor.extent[kRank - 1]);
      first = at.low / kCaptureRun, last = at.high / kCaptureRun;
    }
    if (last - first >= kMostRuns) return mask_bounds::kAnyFloat;
    const CaptureRange* const of_row = table.ranges + row * table.runs;
    mask_bounds::Floats all = {mask_bounds::kInfinite, -mask_bounds::kInfinite, false};
#pragma unroll 1
    for (int run = first; run <= last; ++run) {  // usually one or two runs, and seldom in two cache lines
      const CaptureRange own = of_row[run];
      all = mask_bounds::hull(all, mask_bounds::Floats{own.low, own.high, own.has_nan != 0});
    }
    return all;
  }
};

}  // namespace attend
