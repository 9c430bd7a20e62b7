// Merges attention results over parts of the keys into the attention result over all keys.
//
//   lse = log(sum_n exp(lse_n) + exp(sink)),   o = sum_n exp(lse_n - lse) o_n
//
// Shapes:   see MergeArgs. Number, types and strides of the states are arbitrary. The outputs o and lse may use the
//           memory of the o and lse of one of the states.
// Work:     A warp merges a row. Lane n computes the weight of state n. All lanes then sum columns, in the order of
//           states.
// Rounding: Weights and sums are float64. If lse of a state is -inf, its o is not read.
// Called:   by src/cuda/serving/merge.cpp, and after sm90_forward if several blocks share the keys of a row.
// Source:   Milakov & Gimelshein, Online normalizer calculation for softmax (2018), section 3.1.
#pragma once

#include "../common/warp_reduce.cuh"
#include "../isa/grid_dependency.cuh"
#include "cache.cuh"
#include "merge_args.cuh"
#include "rows.cuh"

namespace attend {

// A row of the result, and the states from which it is merged.
struct MergeRow {
  const MergeArgs& args;
  int64 batch, head, row;

  [[nodiscard]] __device__ __forceinline__ const MergeState& state(int n) const {
    return args.in_memory != nullptr ? args.in_memory[n] : args.states[n];
  }

  // Returns the sink in the base of the states' lse (e or 2), or -inf if there is no sink.
  [[nodiscard]] __device__ __forceinline__ double sink() const {
    if (args.sinks == nullptr) return -static_cast<double>(kInfinity);
    const int64 at = batch * args.sink_batch_stride + head * args.sink_head_stride;
    const auto element = static_cast<StoredElement>(args.sink_element);
    const double sink = element == StoredElement::kF64 ? static_cast<const double*>(args.sinks)[at]
                                                       : static_cast<double>(load_number(args.sinks, element, at));
    return args.lse_base2 != 0 ? sink / 0.6931471805599453 : sink;
  }

  // Returns the lse of state `first + lane`, or -inf if there is no such state.
  [[nodiscard]] __device__ __forceinline__ double lse_of_lane(int first) const {
    const int n = first + static_cast<int>(threadIdx.x) % kWarpThreads;
    if (n >= static_cast<int>(args.num_states)) return -static_cast<double>(kInfinity);
    const MergeState& s = state(n);
    return s.lse[s.lse_stride.offset(batch, head, row)];
  }

  // Returns exp(lse - highest), or 1 if the arguments are equal, even if they are infinite.
  [[nodiscard]] __device__ __forceinline__ double share(double lse, double highest) const {
    if (lse == highest) return 1;
    return args.lse_base2 != 0 ? exp2(lse - highest) : exp(lse - highest);
  }
};

// Returns the maximum of the sink and of all lse, or NaN if one of them is NaN.
[[nodiscard]] __device__ __forceinline__ double highest_lse(const MergeRow& row, double sink) {
  double highest = sink;
  for (int first = 0; first < static_cast<int>(row.args.num_states); first += kWarpThreads) {
    double lse = row.lse_of_lane(first);
#pragma unroll
    for (int distance = kWarpThreads / 2; distance > 0; distance /= 2) {
      const double other = __shfl_xor_sync(kAllLanes, lse, distance);
      if (other > lse || other != other) lse = other;
    }
    if (lse > highest || lse != lse) highest = lse;
  }
  return highest;
}

// Returns exp(sink - highest) + sum_n exp(lse_n - highest). The sink is added first, and then the states in order.
[[nodiscard]] __device__ __forceinline__ double sum_of_shares(const MergeRow& row, double sink, double highest) {
  double sum = row.share(sink, highest);
  const int states = static_cast<int>(row.args.num_states);
  for (int first = 0; first < states; first += kWarpThreads) {
    const double share = row.share(row.lse_of_lane(first), highest);
    for (int n = 0; n < min(kWarpThreads, states - first); ++n) sum += __shfl_sync(kAllLanes, share, n);
  }
  return sum;
}

// Sums the weighted columns of the states, and writes them to o.
__device__ __forceinline__ void merge_columns(const MergeRow& row, double highest, double sum) {
  constexpr int kSteps = kMostMergeColumns / (kWarpThreads * kRowRun);
  constexpr double kNone = -static_cast<double>(kInfinity);
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads, cols = static_cast<int>(row.args.head_dim_v);
  const int states = highest == kNone ? 0 : static_cast<int>(row.args.num_states);
  double o[kSteps][kRowRun] = {};
  for (int first = 0; first < states; first += kWarpThreads) {
    const double lse = row.lse_of_lane(first);
    // kNone marks a state to skip. A weight is at least 0 or NaN.
    const double weight = lse == kNone ? kNone : row.share(lse, highest) / sum;
    for (int n = 0; n < min(kWarpThreads, states - first); ++n) {
      const double of_state = __shfl_sync(kAllLanes, weight, n);
      if (of_state == kNone) continue;
      const MergeState& state = row.state(first + n);
      const void* from = row_address(state.o, row.batch, row.head, row.row);
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const int col = (step * kWarpThreads + lane) * kRowRun;
        if (col >= cols) continue;
        float x[kRowRun];
        load_run(x, state.o, from, col, cols);
#pragma unroll
        for (int i = 0; i < kRowRun; ++i) o[step][i] = fma(static_cast<double>(x[i]), of_state, o[step][i]);
      }
    }
  }
  void* to = row_address(row.args.o, row.batch, row.head, row.row);
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int col = (step * kWarpThreads + lane) * kRowRun;
    if (col >= cols) continue;
    float x[kRowRun];
#pragma unroll
    for (int i = 0; i < kRowRun; ++i) x[i] = __double2float_rn(o[step][i]);
    store_run(x, row.args.o, to, col, cols);
  }
}

// Merges the rows of all batch entries and heads. Config: kThreads.
template <class Config>
__device__ void merge(const MergeArgs& args) {
  static_assert(Config::kThreads == kMergeThreads);
  wait_for_kernels_before();
  let_next_kernel_start();
  constexpr int kWarps = kMergeThreads / kWarpThreads;
  const int64 first = static_cast<int64>(blockIdx.x) * kWarps + threadIdx.x / kWarpThreads;
  for (int64 at = first; at < args.num_rows; at += static_cast<int64>(gridDim.x) * kWarps) {
    const Division of_head = divide(at, args.seqlen);
    const Division of_batch = divide(of_head.quotient, args.num_heads);
    const MergeRow row = {args, of_batch.quotient, of_batch.rest, of_head.rest};
    const double sink = row.sink();
    const double highest = highest_lse(row, sink);
    const bool is_none = highest == -static_cast<double>(kInfinity);
    const double sum = is_none ? 1 : sum_of_shares(row, sink, highest);
    merge_columns(row, highest, sum);
    __syncwarp();  // waits until all lanes have read the lse of all states, because the lse of the result may share
                   // memory with one of them
    if (args.lse != nullptr && threadIdx.x % kWarpThreads == 0) {
      const double lse = is_none ? highest : highest + (args.lse_base2 != 0 ? log2(sum) : log(sum));
      args.lse[args.lse_stride.offset(row.batch, row.head, row.row)] = __double2float_rn(lse);
    }
  }
}

// Copies states to device memory. The grid has one block. Config: kThreads.
template <class Config>
__device__ void store_states(const StoreStatesArgs& args) {
  wait_for_kernels_before();
  let_next_kernel_start();
  for (uint32 n = threadIdx.x; n < args.num_states; n += Config::kThreads) args.to[n] = args.states[n];
}

}  // namespace attend
