// The two matrix products of attention for a warpgroup of 64 query rows, and the epilogue.
//
// Tiles of q have kBlockM rows, and tiles of k and v have kBlockN rows. They lie in shared memory as swizzled panels of
// 64 columns (smem_address.cuh). s, p and o are in registers, in the layout of accumulator_mask.cuh. p is packed into
// the A operand, which has the same layout.
#pragma once

#include "../../attention/online_softmax.cuh"
#include "../../common/args.cuh"
#include "../../common/element.cuh"
#include "../../isa/smem_address.cuh"
#include "../../isa/wgmma.cuh"
#include "../../tiles/accumulator_mask.cuh"
#include "row_tile.cuh"

namespace attend {

template <class Config>
struct WarpgroupTile {
  static constexpr int kScores = Config::kBlockN / 2;     // number of scores that a thread holds
  static constexpr int kPairs = Config::kBlockN / 4;      // number of pairs of 16-bit p that a thread holds
  static constexpr int kOutputs = Config::kHeadDimV / 2;  // number of elements of o that a thread holds
  static constexpr uint32 kPanelBytesQ = Config::kBlockM * kSwizzleBytes;
  static constexpr uint32 kPanelBytesK = Config::kBlockN * kSwizzleBytes;
};

// Starts s = q k^T, or s = -q k^T if kNegateScores is set. Until wgmma_wait() returns, s must not be accessed. q_smem
// is the address of the warpgroup's first row of q.
template <class Config>
__device__ __forceinline__ void begin_qk(float (&s)[WarpgroupTile<Config>::kScores], uint32 q_smem, uint32 k_smem) {
  static_assert(kFitsTiles<Config>);
  using Op = WgmmaOp<Config::kElement, Config::kBlockN>;
  constexpr int kStepsOfPanel = kPanelColumns / kWgmmaDepth;
  constexpr int kStepBytes = kWgmmaDepth * sizeof(Bits16);
  const MatrixDescriptor q = MatrixDescriptor::along_rows(q_smem);
  const MatrixDescriptor k = MatrixDescriptor::along_rows(k_smem);
  pin_registers(s);
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < Config::kHeadDim / kWgmmaDepth; ++i) {
    const uint32 in_panel = i % kStepsOfPanel * kStepBytes;
    Op::template ss<false, Config::kNegateScores ? -1 : 1>(
        s, q.advance(i / kStepsOfPanel * WarpgroupTile<Config>::kPanelBytesQ + in_panel),
        k.advance(i / kStepsOfPanel * WarpgroupTile<Config>::kPanelBytesK + in_panel), i > 0);
  }
  wgmma_commit();
}

// Starts o += p v. Until wgmma_wait() returns, o and p must not be accessed.
template <class Config>
__device__ __forceinline__ void begin_pv(float (&o)[WarpgroupTile<Config>::kOutputs],
                                         const uint32 (&p)[WarpgroupTile<Config>::kPairs], uint32 v_smem) {
  using Op = WgmmaOp<Config::kElement, Config::kHeadDimV>;
  const MatrixDescriptor v = MatrixDescriptor::down_columns(v_smem, WarpgroupTile<Config>::kPanelBytesK);
  pin_registers(o);
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < Config::kBlockN / kWgmmaDepth; ++i) {
    Op::template rs<true, 1>(o, p + 4 * i, v.advance(i * kWgmmaDepth * kSwizzleBytes), true);
  }
  wgmma_commit();
}

// Packs neighbours in a row into pairs. The order of accumulators is that of the A operand.
template <class Element, int kCount>
__device__ __forceinline__ void pack_p(uint32 (&p)[kCount], const float (&score)[2 * kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) p[i] = Element::pack(score[2 * i], score[2 * i + 1]);
}

// The two rows of a thread, among the rows of the block's warpgroups.
struct ThreadRows {
  int64 row[kRowsOfThread];
  int key_end[kRowsOfThread];  // the row sees the keys before this one

  // `thread` is the number of the thread among the threads that have rows, across all warpgroups.
  [[nodiscard]] static __device__ __forceinline__ ThreadRows of_thread(const RowTile& tile, int thread) {
    const int64 row = tile.row_begin + accumulator_row(thread);
    return {{row, row + kRowHalf}, {tile.key_end(row), tile.key_end(row + kRowHalf)}};
  }
};

// Sets the scores that the thread's rows do not see to -inf. The tile of keys begins at key_begin.
template <class Config>
__device__ __forceinline__ void mask_tile(float (&s)[WarpgroupTile<Config>::kScores], const ThreadRows& rows,
                                          int key_begin) {
  const int num_keys[kRowsOfThread] = {keys_in_tile(rows.key_end[0], key_begin, Config::kBlockN),
                                       keys_in_tile(rows.key_end[1], key_begin, Config::kBlockN)};
  mask_keys(s, static_cast<int>(threadIdx.x), num_keys);
}

// Writes o / l and lse of the thread's rows to memory. Rows behind the last row of q are not written.
template <class Config>
__device__ __forceinline__ void store_rows(const ForwardArgs& args, const RowTile& tile, const ThreadRows& rows,
                                           OnlineSoftmax& softmax, const float (&o)[WarpgroupTile<Config>::kOutputs]) {
  softmax.finish();
  const int column = accumulator_column(static_cast<int>(threadIdx.x));
#pragma unroll
  for (int h = 0; h < kRowsOfThread; ++h) {
    if (rows.row[h] >= args.seqlen_q) continue;
    const float factor = softmax.inverse_sum(h);
    auto* o_row = static_cast<Bits16*>(args.o) + args.o_stride.offset(tile.batch, tile.head, rows.row[h]) + column;
#pragma unroll
    for (int i = 2 * h; i < WarpgroupTile<Config>::kOutputs; i += 4) {
      *reinterpret_cast<uint32*>(o_row + i / 4 * kColumnsOfTile) =
          ElementOf<Config>::pack(o[i] * factor, o[i + 1] * factor);
    }
    if (column == 0 && args.lse != nullptr) {
      args.lse[args.lse_stride.offset(tile.batch, tile.head, rows.row[h])] = softmax.lse(h);
    }
  }
}

}  // namespace attend
