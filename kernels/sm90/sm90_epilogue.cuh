// Writes the output o / l and lse of the 64 query rows of a consumer warpgroup from registers to memory.
#pragma once

#include "../attention/merge_rows.cuh"
#include "../attention/row_end.cuh"
#include "../isa/named_barrier.cuh"
#include "../isa/stmatrix.cuh"
#include "../tiles/tma_panel.cuh"
#include "quad_transpose.cuh"
#include "sm90_products.cuh"
#include "sm90_softmax.cuh"
#include "sm90_work.cuh"

namespace attend {

constexpr int kSm90StoreBarrier = 8;  // named barrier of consumer 0; consumer i uses kSm90StoreBarrier + i

// Returns the thread's index in its warpgroup. Reads the special register again, because a stored value would occupy a
// register during the loop over keys.
[[nodiscard]] __device__ __forceinline__ int reread_thread() {
  uint32 thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return static_cast<int>(thread % kWarpgroup);
}

// The rows of a warpgroup, and the two rows that the calling thread holds.
struct Sm90Rows {
  int consumer;  // index of the consumer warpgroup, in a uniform register
  int thread;    // index of the thread in the warpgroup
  int first;     // first row of the warpgroup, as an index in the sequence
  int mine;      // the thread's row h = 0; its row h = 1 lies kRowHalf rows below

  [[nodiscard]] static __device__ __forceinline__ Sm90Rows of(const Sm90Work& work, int consumer) {
    const int thread = reread_thread();
    const int first = work.row + consumer * kWarpgroupRows;
    return {consumer, thread, first, first + accumulator_row(thread)};
  }
};

// Returns the factor that converts lse from natural logarithms. It is log2(e) if the caller requests base 2, which only
// the cache interface allows, and 1 otherwise.
template <class Config>
[[nodiscard]] __device__ __forceinline__ float lse_unit(const Sm90ForwardArgs& args) {
  if constexpr (Config::kIsCached) return static_cast<const Sm90CachedArgs&>(args).lse_base2 != 0 ? kLog2E : 1.0f;
  return 1.0f;
}

// Returns the position of the tile's o and lse. If kSplitsKeys is set, the outputs over one part of the keys follow the
// outputs over the previous part. Each part has `batch` entries.
template <class Config>
[[nodiscard]] __device__ __forceinline__ SequenceSpan span_of_outputs(const Sm90ForwardArgs& args,
                                                                      const Sm90Work& work) {
  SequenceSpan span = work.template span<Config>();
  if constexpr (Config::kSplitsKeys) span.batch += static_cast<uint32>(work.batch) * args.base.batch;
  return span;
}

template <class Config>
__device__ __forceinline__ void store_lse(const Sm90ForwardArgs& args, const Sm90Work& work, const Sm90Rows& rows,
                                          const float (&lse)[kRowsOfThread]) {
  if (args.base.lse == nullptr || accumulator_column(rows.thread) != 0) return;
#pragma unroll
  for (int h = 0; h < kRowsOfThread; ++h) {
    const int row = rows.mine + h * kRowHalf;
    if (row >= work.seqlen_q) continue;
    args.base.lse[span_of_outputs<Config>(args, work).query_offset(args.base.lse_stride, work.head, row)] =
        lse[h] * lse_unit<Config>(args);
  }
}

// Stores o with 16 bytes per lane, directly from registers. Used if o has no staging buffer in shared memory, and if
// the following rows in memory belong to another sequence. All lanes of the warp must call it.
template <class Config>
__device__ __forceinline__ void store_o_directly(const Sm90ForwardArgs& args, const Sm90Work& work,
                                                 const Sm90Rows& rows,
                                                 const uint32 (&pair)[Sm90Fragments<Config>::kOutputs / 2]) {
  const int lane_column = rows.thread % 4 * kColumnsOfTile;
#pragma unroll
  for (int h = 0; h < kRowsOfThread; ++h) {
    const int row = rows.mine + h * kRowHalf;
    auto* o_row = static_cast<Bits16*>(args.base.o) +
                  work.template span<Config>().query_offset(args.base.o_stride, work.head, row) + lane_column;
#pragma unroll
    for (int column = 0; column < Sm90Shape<Config>::kColumnsV; column += 4 * kColumnsOfTile) {
      uint32 four[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        // if kColumnsV is not a multiple of 32, the last 16 columns of this group do not exist.
        const int i = column / 4 + h + 2 * j;
        four[j] = i < Sm90Fragments<Config>::kOutputs / 2 ? pair[i] : 0;
      }
      transpose_quad(four);
      if (row < work.seqlen_q && column + lane_column < Config::kHeadDimV) {  // kHeadDimV is a multiple of 8
        *reinterpret_cast<uint4*>(o_row + column) = make_uint4(four[0], four[1], four[2], four[3]);
      }
    }
  }
}

// Stores o with TMA. The buffer that held the warpgroup's q serves as the staging buffer, so all products that read q
// must be complete.
template <class Config>
__device__ __forceinline__ void store_o_by_tma(const Sm90ForwardArgs& args, const Sm90Work& work, const Sm90Rows& rows,
                                               uint32 q_smem,
                                               const uint32 (&pair)[Sm90Fragments<Config>::kOutputs / 2]) {
  using Shape = Sm90Shape<Config>;
  const int lane = rows.thread % 32;
  const int row = rows.thread / 32 * 16 + lane % 16;  // the row whose address this lane passes to stmatrix
  const int half = lane / 16;                         // which half of the 16 columns of one stmatrix this lane writes
#pragma unroll
  for (int i = 0; i < Shape::kColumnsV / 16; ++i) {
    const int piece = i % 4 * 2 + half;
    const uint32 four[4] = {pair[4 * i], pair[4 * i + 1], pair[4 * i + 2], pair[4 * i + 3]};
    stmatrix_x4(q_smem + i / 4 * Shape::kPanelBytesQ + row * kSwizzleBytes + ((piece ^ (row % 8)) << 4), four);
  }
  fence_smem_for_async();
  // All threads have written their part of o, and TMA may read it.
  barrier_wait<kWarpgroup>(kSm90StoreBarrier + rows.consumer);
  if (rows.thread != 0) return;
#pragma unroll
  for (int panel = 0; panel < Shape::kPanelsV; ++panel) {
    tma_store_panel(
        args.o_map, q_smem + panel * Shape::kPanelBytesQ,
        PanelPlace::of(work.template span<Config>().query_place(rows.first), work.head, panel * kPanelColumns));
  }
  tma_store_commit();
}

// Stores o and lse over one part of the keys. A later merge kernel combines all parts. Used if kSplitsKeys is set.
template <class Config>
__device__ __forceinline__ void store_part(const Sm90ForwardArgs& args, const Sm90Work& work, const Sm90Rows& rows,
                                           const float (&factor)[kRowsOfThread], const float (&lse)[kRowsOfThread],
                                           const float (&o)[Sm90Fragments<Config>::kOutputs]) {
  static_assert(!Score<Config>::kAddsToSum, "each part would add the logit to the sum");
  static_assert(!Config::kIsVarlen && !Config::kIsCached && !Config::kAddsToOutputs);
  store_lse<Config>(args, work, rows, lse);
  const SequenceSpan span = span_of_outputs<Config>(args, work);
#pragma unroll
  for (int h = 0; h < kRowsOfThread; ++h) {
    const int row = rows.mine + h * kRowHalf;
    if (row >= work.seqlen_q) continue;
    auto* const o_row = static_cast<float*>(args.base.o) + span.query_offset(args.base.o_stride, work.head, row) +
                        accumulator_column(rows.thread);
#pragma unroll
    for (int column = 0; column < Config::kHeadDimV; column += kColumnsOfTile) {  // kHeadDimV is a multiple of 8
      const int i = column / 2 + 2 * h;
      *reinterpret_cast<float2*>(o_row + column) = make_float2(o[i] * factor[h], o[i + 1] * factor[h]);
    }
  }
}

// Merges o and lse over the current keys with the o and lse in memory, which were computed over other keys. All values
// are floats. Used if kAddsToOutputs is set.
template <class Config>
__device__ __forceinline__ void merge_rows(const Sm90ForwardArgs& args, const Sm90Work& work, const Sm90Rows& rows,
                                           const float (&factor)[kRowsOfThread], const float (&lse)[kRowsOfThread],
                                           const float (&o)[Sm90Fragments<Config>::kOutputs]) {
  static_assert(!Score<Config>::kAddsToSum, "each part would add the logit to the sum");
  const SequenceSpan span = work.template span<Config>();
  float before[kRowsOfThread] = {-kInfinity, -kInfinity};
#pragma unroll
  for (int h = 0; h < kRowsOfThread; ++h) {
    const int row = rows.mine + h * kRowHalf;
    if (row < work.seqlen_q) {
      before[h] = args.base.lse[span.query_offset(args.base.lse_stride, work.head, row)];
    }
  }
  __syncwarp();  // all four lanes of the quad have read lse of their rows, so one of them may overwrite it
  const float after[kRowsOfThread] = {merged(before[0], lse[0]).lse, merged(before[1], lse[1]).lse};
  store_lse<Config>(args, work, rows, after);
#pragma unroll
  for (int h = 0; h < kRowsOfThread; ++h) {
    const int row = rows.mine + h * kRowHalf;
    if (row >= work.seqlen_q) continue;
    const MergedLse weights = merged(before[h], lse[h]);
    const float scale = weights.part * factor[h];
    auto* const o_row = static_cast<float*>(args.base.o) + span.query_offset(args.base.o_stride, work.head, row) +
                        accumulator_column(rows.thread);
    // All loads are issued before the first store. If no earlier key was visible to the row, o in memory is undefined
    // and is not read.
    float2 found[Sm90Shape<Config>::kColumnsV / kColumnsOfTile] = {};
    if (before[h] != -kInfinity) {
#pragma unroll
      for (int column = 0; column < Config::kHeadDimV; column += kColumnsOfTile) {
        found[column / kColumnsOfTile] = *reinterpret_cast<const float2*>(o_row + column);
      }
    }
#pragma unroll
    for (int column = 0; column < Config::kHeadDimV; column += kColumnsOfTile) {  // kHeadDimV is a multiple of 8
      const int i = column / 2 + 2 * h;
      const float2 other = found[column / kColumnsOfTile];
      *reinterpret_cast<float2*>(o_row + column) =
          make_float2(fmaf(weights.before, other.x, o[i] * scale), fmaf(weights.before, other.y, o[i + 1] * scale));
    }
  }
}

template <class Config>
[[nodiscard]] __device__ __forceinline__ RowEnd<Config> row_end(const Sm90ForwardArgs& args, const Sm90Work& work) {
  return RowEnd<Config>::of(args.options, work.sequence, work.head);
}

// Stores the result of rows that see no key: o = 0, and lse = -inf or the head's logit. If kAddsToOutputs is set, the
// rows keep their results over other keys. If kSplitsKeys is set, only lse is stored, because the merge does not read o
// of a part without visible keys.
template <class Config>
__device__ __forceinline__ void store_nothing_seen(const Sm90ForwardArgs& args, const Sm90Work& work,
                                                   const Sm90Rows& rows) {
  if constexpr (Config::kAddsToOutputs) {  // o in memory may be undefined; merge_rows() then stores zeros
    const float nothing[Sm90Fragments<Config>::kOutputs] = {};
    merge_rows<Config>(args, work, rows, {0.0f, 0.0f}, {-kInfinity, -kInfinity}, nothing);
    return;
  }
  if constexpr (Config::kSplitsKeys) {
    store_lse<Config>(args, work, rows, {-kInfinity, -kInfinity});
    return;
  }
  const uint32 zeros[Sm90Fragments<Config>::kOutputs / 2] = {};
  store_o_directly<Config>(args, work, rows, zeros);
  const float lse = row_end<Config>(args, work).lse(-kInfinity);
  store_lse<Config>(args, work, rows, {lse, lse});
}

template <class Config>
__device__ __forceinline__ void store_rows(const Sm90ForwardArgs& args, const Sm90Work& work, const Sm90Rows& rows,
                                           uint32 q_smem, const Sm90Softmax<Config>& softmax, float lse_offset,
                                           const float (&o)[Sm90Fragments<Config>::kOutputs]) {
  const float of_keys[kRowsOfThread] = {softmax.lse(0) + lse_offset, softmax.lse(1) + lse_offset};
  const auto end = row_end<Config>(args, work);
  const float lse[kRowsOfThread] = {end.lse(of_keys[0]), end.lse(of_keys[1])};
  const float factor[kRowsOfThread] = {end.factor(softmax.inverse_sum(0), of_keys[0]),
                                       end.factor(softmax.inverse_sum(1), of_keys[1])};
  if constexpr (Config::kAddsToOutputs) {
    merge_rows<Config>(args, work, rows, factor, lse, o);
    return;
  }
  if constexpr (Config::kSplitsKeys) {
    store_part<Config>(args, work, rows, factor, lse, o);
    return;
  }
  store_lse<Config>(args, work, rows, lse);
  uint32 pair[Sm90Fragments<Config>::kOutputs / 2];
#pragma unroll
  for (int i = 0; i < Sm90Fragments<Config>::kOutputs / 2; ++i) {
    pair[i] = ElementOf<Config>::pack(o[2 * i] * factor[i % 2], o[2 * i + 1] * factor[i % 2]);
  }
  if constexpr (!Sm90Shape<Config>::kStagesO) {
    store_o_directly<Config>(args, work, rows, pair);
  } else if (!Config::kIsVarlen || rows.first + kWarpgroupRows <= work.seqlen_q) {
    store_o_by_tma<Config>(args, work, rows, q_smem, pair);
  } else {
    // Wait until all threads of the warpgroup have read q. TMA is not used, because it would also overwrite rows of the
    // next sequence.
    barrier_wait<kWarpgroup>(kSm90StoreBarrier + rows.consumer);
    store_o_directly<Config>(args, work, rows, pair);
  }
}

}  // namespace attend
