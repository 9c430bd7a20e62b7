// Loads tiles, and the saved statistics of query rows, for a block of sm80_backward.
#pragma once

#include "../attention/lse_rounding.cuh"
#include "../attention/saved_row.cuh"
#include "sm80_backward_storage.cuh"
#include "sm80_pieces.cuh"

namespace attend {

// The tensors that a block loads. Sm80Tensors states which tensors a block owns and over which tensors it iterates.
enum class Sm80Tensor { kQ, kK, kV, kDout };

template <class Config>
struct Sm80Tensors {
  static constexpr bool kOwnsKeys = Sm80BackwardShape<Config>::kOwnsKeys;
  static constexpr Sm80Tensor kOwned = kOwnsKeys ? Sm80Tensor::kK : Sm80Tensor::kQ;
  static constexpr Sm80Tensor kOwnedV = kOwnsKeys ? Sm80Tensor::kV : Sm80Tensor::kDout;
  static constexpr Sm80Tensor kStreamed = kOwnsKeys ? Sm80Tensor::kQ : Sm80Tensor::kK;
  static constexpr Sm80Tensor kStreamedV = kOwnsKeys ? Sm80Tensor::kDout : Sm80Tensor::kV;
};

// Access to one tensor in global memory. The argument `head` of its functions is a query head.
template <class Config, Sm80Tensor kTensor>
struct Sm80Rows {
  static constexpr bool kOfKeys = kTensor == Sm80Tensor::kK || kTensor == Sm80Tensor::kV;
  static constexpr bool kOfValues = kTensor == Sm80Tensor::kV || kTensor == Sm80Tensor::kDout;

  [[nodiscard]] static __device__ __forceinline__ const void* data(const BackwardArgs& args) {
    return kOfKeys ? (kOfValues ? args.v : args.k) : (kOfValues ? args.dout : args.q);
  }
  [[nodiscard]] static __device__ __forceinline__ const TensorStrides& stride(const BackwardArgs& args) {
    return kOfKeys ? (kOfValues ? args.v_stride : args.k_stride) : (kOfValues ? args.dout_stride : args.q_stride);
  }

  // Starts the copies of a tile that begins at row `row` of the sequence. If the sequence ends within the tile, the
  // remaining rows become zero.
  template <class Tile>
  static __device__ __forceinline__ void load(Tile& tile, const BackwardArgs& args, const SequenceSpan& span,
                                              uint32 head, int64 row) {
    const uint32 its_head = kOfKeys ? key_head_of(args, head) : head;
    const auto* first =
        static_cast<const Bits16*>(data(args)) +
        (kOfKeys ? span.keys().offset(stride(args), its_head, row) : span.query_offset(stride(args), its_head, row));
    // Warps that share keys have no free registers for values that are the same for all tiles, so these values are
    // recomputed.
    constexpr bool kRecomputes = Config::kParts > 1;
    const int64 row_stride = kRecomputes ? recomputed(stride(args).row) : stride(args).row;
    PieceLoader<Config, Tile> loader(first, row_stride, kRecomputes ? recomputed(threadIdx.x) : threadIdx.x);
    const int64 left = (kOfKeys ? span.seqlen_k : span.seqlen_q) - row;
    loader.load(tile, row_stride, static_cast<int>(min(left, int64{Tile::kRows})),
                kOfValues ? Config::kHeadDimV : Config::kHeadDim);
  }
};

// Starts the copies of lse and delta of kRows query rows to index `at` in shared memory. `row` is the first row, as an
// index in the sequence.
template <class Config, int kRows>
__device__ __forceinline__ void sm80_load_statistics(Sm80BackwardStorage<Config>& smem, const BackwardOptionArgs& args,
                                                     const SequenceSpan& span, uint32 head, int64 row, int at) {
  static_assert(kRows <= Config::kThreads);
  const int i = static_cast<int>(threadIdx.x);
  if (i >= kRows) return;
  const bool exists = row + i < span.seqlen_q;
  const SavedRow* saved = saved_rows(args, span, head) + row + i;
  cp_async_4(smem_address(&smem.lse[at + i]), &saved->lse, exists);
  cp_async_4(smem_address(&smem.delta[at + i]), &saved->delta, exists);
  if constexpr (Config::kHasLseRounding) {
    cp_async_4(smem_address(&smem.log2_sums.of_row[at + i]), &saved->log2_sum, exists);
  }
}

// Starts the copies of the two owned tiles. If the block does not compute ds, v or dout is not copied. `head` is a
// query head.
template <class Config>
__device__ __forceinline__ void sm80_load_owned(Sm80BackwardStorage<Config>& smem, const BackwardOptionArgs& args,
                                                const SequenceSpan& span, uint32 head, int64 owned) {
  using Shape = Sm80BackwardShape<Config>;
  using Tensors = Sm80Tensors<Config>;
  Sm80Rows<Config, Tensors::kOwned>::load(smem.owned, args.base, span, head, owned);
  if constexpr (Shape::kHasDs) {
    Sm80Rows<Config, Tensors::kOwnedV>::load(smem.owned_v, args.base, span, head, owned);
  }
  if constexpr (!Shape::kOwnsKeys) sm80_load_statistics<Config, Shape::kOwned>(smem, args, span, head, owned, 0);
}

// Returns the buffer that holds row or key `streamed` of the sequence.
template <class Config>
[[nodiscard]] __device__ __forceinline__ int sm80_buffer(int streamed) {
  return streamed / Config::kStreamed % Sm80BackwardShape<Config>::kStages;
}

// Returns the buffer of the warp's current tile. Row or key `streamed` of the sequence must be in this tile.
template <class Config>
[[nodiscard]] __device__ __forceinline__ int sm80_buffer(const Sm80BackwardStorage<Config>& smem, int streamed) {
  if constexpr (has_block_map<Config>() && Sm80BackwardShape<Config>::kStages > 1) {
    return smem.block.walk[threadIdx.x / 32].buffer;
  }
  return sm80_buffer<Config>(streamed);
}

// Starts the copies of a streamed tile of the block's query head to buffer `at`. `streamed` is the tile's first row or
// key. The addresses are computed again for each tile, because saved addresses would occupy registers that the sums
// need.
template <class Config>
__device__ __forceinline__ void sm80_send_streamed(Sm80BackwardStorage<Config>& smem, const BackwardOptionArgs& args,
                                                   int streamed, int at) {
  using Tensors = Sm80Tensors<Config>;
  const SequenceSpan& span = smem.block.span;
  const uint32 head = smem.block.head;
  Sm80Rows<Config, Tensors::kStreamed>::load(smem.stage[at].rows, args.base, span, head, streamed);
  Sm80Rows<Config, Tensors::kStreamedV>::load(smem.stage[at].rows_v, args.base, span, head, streamed);
  if constexpr (Tensors::kOwnsKeys) {
    sm80_load_statistics<Config, Config::kStreamed>(smem, args, span, head, streamed, at * Config::kStreamed);
  }
}

}  // namespace attend
