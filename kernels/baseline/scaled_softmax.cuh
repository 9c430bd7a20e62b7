// The softmax between two batched products. Computes p = softmax(scale s) for rows of scores in memory, and ds = scale
// p (dp - <p, dp>).
//
// Shapes:   s, p, dp and ds have the shape (matrices, seqlen_q, seqlen_k). They are contiguous and have 16-bit
//           elements. dp and ds may be the same memory. seqlen_k is a multiple of 8, and at most kSeqlenK. Every
//           address is a multiple of 16 bytes. A row that sees no key gets p = 0.
// Work:     This is the middle step of attention with S and P in memory. As in Megatron-LM, scale, causal mask and
//           softmax are fused, so they read the scores once and write them once. One warp processes a row. If rows are
//           long, one block processes a row. The elements of a row stay in registers.
// Called:   by src/baseline/scaled_softmax.cpp for the measuring tools. The kernel is a baseline for comparison, and
//           not a backend.
// Source:   Shoeybi et al., Megatron-LM (2019), for the idea of fused kernels. No code is copied.
#pragma once

#include "../common/element.cuh"
#include "../common/numbers.cuh"
#include "../common/portable.cuh"
#include "../common/warp_reduce.cuh"
#include "scaled_softmax_args.cuh"

namespace attend {

// A row, spread over the threads that share it. Config: kElement, kSeqlenK (a power of 2), kThreads, kCausal.
template <class Config>
struct SoftmaxRow {
  using Element = ElementOf<Config>;
  static_assert(sizeof(typename Element::Storage) == sizeof(Bits16));
  static constexpr int kThreads = softmax_row_threads(Config::kSeqlenK);
  static constexpr int kVector = kSoftmaxVector;
  static constexpr int kVectors = Config::kSeqlenK / kThreads / kVector;
  static constexpr int kWarps = kThreads / kWarpThreads;
  static_assert(kVectors >= 1 && (kWarps == 1 || kThreads == Config::kThreads));

  float x[kVectors][kVector];

  // Returns the number of the first element of the thread's vector i.
  static __device__ __forceinline__ int begin(int i) {
    return (i * kThreads + static_cast<int>(threadIdx.x) % kThreads) * kVector;
  }

  // Loads the row. Elements from `visible` on become `hidden`. Vectors that have only such elements are not read.
  __device__ __forceinline__ void load(const void* row, int64 visible, float hidden) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      uint4 bits = {};
      if (begin(i) < visible) bits = *reinterpret_cast<const uint4*>(static_cast<const Bits16*>(row) + begin(i));
      const uint32 pairs[] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        const float value = j % 2 == 0 ? Element::low(pairs[j / 2]) : Element::high(pairs[j / 2]);
        x[i][j] = begin(i) + j < visible ? value : hidden;
      }
    }
  }

  __device__ __forceinline__ void store(void* row, int64 seqlen_k) const {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (begin(i) >= seqlen_k) continue;
      uint32 pairs[kVector / 2];
#pragma unroll
      for (int j = 0; j < kVector / 2; ++j) pairs[j] = Element::pack(x[i][2 * j], x[i][2 * j + 1]);
      *reinterpret_cast<uint4*>(static_cast<Bits16*>(row) + begin(i)) = {pairs[0], pairs[1], pairs[2], pairs[3]};
    }
  }

  template <class Visit>
  __device__ __forceinline__ void for_each(const Visit& visit) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
#pragma unroll
      for (int j = 0; j < kVector; ++j) visit(x[i][j]);
    }
  }

  // Reduces a value over all threads of the row. Each thread gets the result.
  template <bool kMax>
  static __device__ __forceinline__ float reduce(float value) {
    value = kMax ? warp_max(value) : warp_sum(value);
    if constexpr (kWarps > 1) {
      __shared__ float of_warp[kWarps];
      __syncthreads();  // waits until the result of the previous call has been read; of_warp may then be overwritten
      if (threadIdx.x % kWarpThreads == 0) of_warp[threadIdx.x / kWarpThreads] = value;
      __syncthreads();  // waits until every warp's value is written; any thread may then read it
      value = of_warp[0];
      for (int w = 1; w < kWarps; ++w) value = kMax ? fmaxf(value, of_warp[w]) : value + of_warp[w];
    }
    return value;
  }
};

// Finds the row of this thread, and the number of its visible keys. Returns false if the thread lies beyond the last
// row.
template <class Config>
__device__ __forceinline__ bool find_row(const ScaledSoftmaxArgs& args, int64& row, int64& visible) {
  constexpr int kRowThreads = SoftmaxRow<Config>::kThreads;
  row = static_cast<int64>(blockIdx.x) * (Config::kThreads / kRowThreads) + static_cast<int>(threadIdx.x) / kRowThreads;
  visible = args.seqlen_k;
  if (Config::kCausal) visible = min(visible, row % args.seqlen_q + 1 + args.seqlen_k - args.seqlen_q);
  return row < args.rows;
}

template <class Config>
__device__ void scaled_softmax(const ScaledSoftmaxArgs& args) {
  int64 row, visible;
  if (!find_row<Config>(args, row, visible)) return;
  SoftmaxRow<Config> s;
  s.load(static_cast<const Bits16*>(args.in) + row * args.seqlen_k, visible, -kInfinity);
  const float scale_log2 = args.scale * kLog2E;
  float largest = -kInfinity;
  s.for_each([&](float& x) {
    if (x != -kInfinity) x *= scale_log2;  // a hidden score stays hidden, even if the scale is negative
    largest = fmaxf(largest, x);
  });
  const float base = exponent_base(s.template reduce<true>(largest));
  float sum = 0;
  s.for_each([&](float& x) {
    x = exp2_fast(x - base);
    sum += x;
  });
  const float inverse = inverse_or_zero(s.template reduce<false>(sum));
  s.for_each([&](float& x) { x *= inverse; });
  s.store(static_cast<Bits16*>(args.out) + row * args.seqlen_k, args.seqlen_k);
}

template <class Config>
__device__ void scaled_softmax_backward(const ScaledSoftmaxArgs& args) {
  int64 row, visible;
  if (!find_row<Config>(args, row, visible)) return;
  SoftmaxRow<Config> p, dp;
  p.load(static_cast<const Bits16*>(args.p) + row * args.seqlen_k, visible, 0);
  dp.load(static_cast<const Bits16*>(args.in) + row * args.seqlen_k, visible, 0);
  float sum = 0;
#pragma unroll
  for (int i = 0; i < p.kVectors; ++i) {
#pragma unroll
    for (int j = 0; j < p.kVector; ++j) sum += p.x[i][j] * dp.x[i][j];
  }
  const float delta = dp.template reduce<false>(sum);
#pragma unroll
  for (int i = 0; i < p.kVectors; ++i) {
#pragma unroll
    for (int j = 0; j < p.kVector; ++j) dp.x[i][j] = args.scale * p.x[i][j] * (dp.x[i][j] - delta);
  }
  dp.store(static_cast<Bits16*>(args.out) + row * args.seqlen_k, args.seqlen_k);
}

}  // namespace attend
