// Loads of a block of simt's backward pass.
#pragma once

#include "../attention/saved_row.cuh"
#include "../common/numbers.cuh"
#include "backward_shape.cuh"
#include "tile_io.cuh"

namespace attend {

// The tensors that belong to one query head.
template <class Config>
struct SimtHead {
  using Source = RowSource<Config>;
  const BackwardArgs& args;
  SequenceSpan span;
  uint32 head;
  uint32 head_k;

  // Returns rows from `row` on. If kOfKeys is set, they are rows of k (kPair = 0) or v (kPair = 1). Otherwise they are
  // rows of q (kPair = 0) or dout (kPair = 1).
  template <bool kOfKeys, int kPair>
  [[nodiscard]] __device__ __forceinline__ Source rows(int64 row) const {
    if constexpr (kOfKeys) {
      const TensorStrides& stride = kPair == 0 ? args.k_stride : args.v_stride;
      return Source::of(kPair == 0 ? args.k : args.v, span.keys().offset(stride, head_k, row), stride.row,
                        span.seqlen_k - row, kPair == 0 ? Config::kHeadDim : Config::kHeadDimV);
    } else {
      const TensorStrides& stride = kPair == 0 ? args.q_stride : args.dout_stride;
      return Source::of(kPair == 0 ? args.q : args.dout, span.query_offset(stride, head, row), stride.row,
                        span.seqlen_q - row, kPair == 0 ? Config::kHeadDim : Config::kHeadDimV);
    }
  }
};

// Loads the saved values of rows [row, row + kBlockM) into shared memory.
template <class Shape>
__device__ __forceinline__ void load_saved(const SavedRow* saved, int64 row, int64 seqlen_q) {
  using Config = typename Shape::Kernel;
  auto* to = reinterpret_cast<SimtSavedRow*>(fp32_smem + Shape::kSaved);
  auto* log2_sums = reinterpret_cast<float*>(fp32_smem + Shape::kLog2Sums);
  for (int i = threadIdx.x; i < Config::kBlockM; i += Config::kThreads) {
    const SavedRow from = row + i < seqlen_q ? saved[row + i] : SavedRow{kInfinity, 0.0f, 0.0f};
    to[i] = {from.lse, from.delta};
    if constexpr (Config::kHasLseRounding) log2_sums[i] = from.log2_sum;
  }
}

// Loads the block's tiles of owned rows or keys, if they stay in shared memory (kResident).
template <class Shape>
__device__ __forceinline__ void load_owned(const SimtHead<typename Shape::Kernel>& head, int64 owned) {
  if constexpr (Shape::kResident) {
    load_transposed<typename Shape::template TransposedTile<0>>(Shape::kTransposed0,
                                                                head.template rows<Shape::kOwnsKeys, 0>(owned));
    load_transposed<typename Shape::template TransposedTile<1>>(Shape::kTransposed1,
                                                                head.template rows<Shape::kOwnsKeys, 1>(owned));
  }
}

// Loads the streamed rows for the products of the gradients, in the columns of this block's part. If tiles stay in
// shared memory, these are all columns of the two pairs. Returns whether this thread loaded only finite numbers.
template <class Shape>
[[nodiscard]] __device__ __forceinline__ bool load_streamed(const SimtHead<typename Shape::Kernel>& head,
                                                            int64 streamed, int part) {
  FiniteWatch watch;
  if constexpr (Shape::kHasRows[0]) {
    load_rows<typename Shape::template StreamedTile<0>>(
        Shape::kRows0, head.template rows<!Shape::kOwnsKeys, 0>(streamed).columns_from(part * Shape::kGradientCols[0]),
        watch);
  }
  if constexpr (Shape::kHasRows[1]) {
    load_rows<typename Shape::template StreamedTile<1>>(
        Shape::kRows1, head.template rows<!Shape::kOwnsKeys, 1>(streamed).columns_from(part * Shape::kGradientCols[1]),
        watch);
  }
  return !watch.saw_other();
}

}  // namespace attend
