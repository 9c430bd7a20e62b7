// Computes to = from, or to = from + other, rounded once. A rank of a ring applies it to blocks of rows.
//
// Shapes:   All tensors have the shape (batch, heads, rows, cols), and any strides whose last is 1. `from` and `to` may
//           each be float32, float16 or bfloat16. `other` is float32. `to` may be the same memory as `other`.
// Work:     A warp has a run of kRingRowsOfWarp rows of a head at a time, and a lane has kVector columns.
// Called:   by src/ring/algorithms/device_exchange.cpp, which packs k and v into one message, and adds sums to dq, dk,
//           dv and o.
#pragma once

#include "../common/element.cuh"
#include "ring_rows_args.cuh"

namespace attend {

// Loads and stores kVector neighbouring elements at once. kVector is 4 if the addresses are aligned, otherwise 1.
template <ElementType kElement, int kVector>
struct RingRun {
  using Element = typename ElementTraits<kElement>::Type;
  using Storage = typename Element::Storage;

  static __device__ __forceinline__ void load(float (&x)[kVector], const Storage* from) {
    if constexpr (kVector == 1) {
      x[0] = Element::to_float(*from);
    } else if constexpr (kElement == ElementType::kF32) {
      const float4 run = *reinterpret_cast<const float4*>(from);
      x[0] = run.x, x[1] = run.y, x[2] = run.z, x[3] = run.w;
    } else {
      static_assert(sizeof(Storage) == sizeof(Bits16));
      const uint2 run = *reinterpret_cast<const uint2*>(from);
      x[0] = Element::low(run.x), x[1] = Element::high(run.x), x[2] = Element::low(run.y), x[3] = Element::high(run.y);
    }
  }

  static __device__ __forceinline__ void store(Storage* to, const float (&x)[kVector]) {
    if constexpr (kVector == 1) {
      *to = Element::round(x[0]);
    } else if constexpr (kElement == ElementType::kF32) {
      *reinterpret_cast<float4*>(to) = make_float4(x[0], x[1], x[2], x[3]);
    } else {
      static_assert(sizeof(Storage) == sizeof(Bits16));
      *reinterpret_cast<uint2*>(to) = make_uint2(Element::pack(x[0], x[1]), Element::pack(x[2], x[3]));
    }
  }
};

// The grid may have any number of blocks. Config: kThreads, kFrom, kTo, kVector, and kAdds, which is set if to = from +
// other.
template <class Config>
__device__ void ring_rows(const RingRowsArgs& args) {
  constexpr int kVector = Config::kVector, kLanes = 32, kRows = kRingRowsOfWarp;
  using From = RingRun<Config::kFrom, kVector>;
  using To = RingRun<Config::kTo, kVector>;
  using Other = RingRun<ElementType::kF32, kVector>;
  const int64 warps = static_cast<int64>(gridDim.x) * (Config::kThreads / kLanes);
  const int64 first = static_cast<int64>(blockIdx.x) * (Config::kThreads / kLanes) + threadIdx.x / kLanes;
  for (int64 at = first; at < args.all_runs; at += warps) {
    const int64 head_of_all = at / args.runs;
    const auto row = static_cast<uint32>(at - head_of_all * args.runs) * kRows;
    const int64 batch = head_of_all / args.heads;
    const int64 head = head_of_all - batch * args.heads;
    const auto* from =
        static_cast<const typename From::Storage*>(args.from) + args.from_stride.offset(batch, head, row);
    const float* const other = Config::kAdds ? args.other + args.other_stride.offset(batch, head, row) : nullptr;
    auto* to = static_cast<typename To::Storage*>(args.to) + args.to_stride.offset(batch, head, row);
    for (uint32 col = threadIdx.x % kLanes * kVector; col < args.cols; col += kLanes * kVector) {
      float x[kRows][kVector], y[kRows][kVector];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {  // all loads are issued before the first store, to hide memory latency
        if (row + r >= args.rows) break;
        From::load(x[r], from + r * args.from_stride.row + col);
        if constexpr (Config::kAdds) Other::load(y[r], other + r * args.other_stride.row + col);
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (row + r >= args.rows) break;
#pragma unroll
        for (int i = 0; i < kVector; ++i) x[r][i] = Config::kAdds ? x[r][i] + y[r][i] : x[r][i];
        To::store(to + r * args.to_stride.row + col, x[r]);
      }
    }
  }
}

}  // namespace attend
