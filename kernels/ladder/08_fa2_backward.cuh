// Rung 08, fa2, backward: dq, dk, dv of o = softmax(scale q k^T) v in float32 on CUDA cores.
//
//   p = exp(scale q k^T - lse)    delta = rowsum(dout * o) - dlse    ds = p * (dout v^T - delta)
//   dv = p^T dout                 dk = scale ds^T q                  dq = scale ds k
//
// Shapes   as in 08_fa2.cuh
// Supports as in 08_fa2.cuh. dq is summed by atomic additions: its last bits differ from run to run
// Before   the standard backward keeps p and ds in memory
// After    a block owns kBlockN keys, with dk and dv in registers, and walks over the tiles of query rows; p is
// computed
//          anew from lse. Each tile's share of dq is added to dq in memory (the L2 cache adds, nobody waits)
// Why      five products, all from shared memory through register tiles, and nothing of size seqlen_q x seqlen_k
// Costs    p and ds go through shared memory, four barriers a tile; dq is zeroed by the kernel before
// Run      attend run --compute fa2 --backward --data DIR
// Source   Dao, FlashAttention-2 (2023), Algorithm 2
#pragma once

#include "../common/args.cuh"
#include "../common/config_enums.cuh"
#include "../common/fp32_scores.cuh"
#include "../common/fp32_tile.cuh"
#include "../common/key_range.cuh"
#include "../common/numbers.cuh"
#include "../common/work.cuh"

namespace attend {

// What the backward pass knows of a row before it starts.
struct RowStatistics {
  float lse_log2;  // log2(e) * lse; +inf for rows that see no key and rows beyond the last: there p = 2^-inf = 0
  float delta;     // rowsum(dout * o) - dlse
};

// The statistics of a head's rows; heads are padded to whole tiles of rows.
template <class Config>
__device__ __forceinline__ RowStatistics* row_statistics(const BackwardArgs& args, uint32 batch, uint32 head) {
  const int64 rows = num_tiles(args.seqlen_q, Config::kBlockM) * Config::kBlockM;
  return static_cast<RowStatistics*>(args.workspace) + (int64{batch} * args.num_heads_q + head) * rows;
}

// The statistics of kBlockM rows, and zeros in their dq. Grid: tiles of every query head. Eight lanes share a row.
template <class Config>
__device__ void fa2_backward_prepare(const BackwardArgs& args) {
  constexpr int kLanes = 8;
  constexpr int kWidth = Config::kAligned ? kChunkFloats : 1;
  const auto row_tiles = static_cast<uint32>(num_tiles(args.seqlen_q, Config::kBlockM));
  const auto [batch, head, tile] = HeadTile::of_block(blockIdx.x, row_tiles, args.num_heads_q);
  RowStatistics* statistics = row_statistics<Config>(args, batch, head);
  for (int i = threadIdx.x / kLanes; i < Config::kBlockM; i += Config::kThreads / kLanes) {
    const int64 row = tile * Config::kBlockM + i;
    float sum = 0.0f;
    if (row < args.seqlen_q) {
      const float* dout = static_cast<const float*>(args.dout) + args.dout_stride.offset(batch, head, row);
      const float* o = static_cast<const float*>(args.o) + args.o_stride.offset(batch, head, row);
      float* dq = static_cast<float*>(args.dq) + args.dq_stride.offset(batch, head, row);
      for (int col = threadIdx.x % kLanes * kWidth; col < Config::kHeadDim; col += kLanes * kWidth) {
        if constexpr (Config::kAligned) {
          const float4 x = *reinterpret_cast<const float4*>(dout + col);
          const float4 y = *reinterpret_cast<const float4*>(o + col);
          sum += x.x * y.x + x.y * y.y + x.z * y.z + x.w * y.w;
          *reinterpret_cast<float4*>(dq + col) = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        } else {
          sum = fmaf(dout[col], o[col], sum);
          dq[col] = 0.0f;
        }
      }
    }
#pragma unroll
    for (int lanes = 1; lanes < kLanes; lanes *= 2) sum += __shfl_xor_sync(0xffffffff, sum, lanes);
    if (threadIdx.x % kLanes != 0) continue;
    RowStatistics result = {kInfinity, 0.0f};
    if (row < args.seqlen_q) {
      const float lse = args.lse[args.lse_stride.offset(batch, head, row)];
      if (lse != -kInfinity) result.lse_log2 = lse * kLog2E;
      result.delta = args.dlse == nullptr ? sum : sum - args.dlse[args.dlse_stride.offset(batch, head, row)];
    }
    statistics[row] = result;
  }
}

// How a block divides its tiles: threads are a grid of kThreadsY x kThreadsX; a thread has kRows x kKeys scores,
// kKeysOut x kDims of dk and dv, kRows x kDims of dq.
template <class Config>
struct Fa2BackwardShape {
  static constexpr int kCols = (Config::kHeadDim + 31) / 32 * 32;
  static constexpr int kLanesX = 8;
  static constexpr int kThreadsX = Config::kThreadsX;
  static constexpr int kThreadsY = Config::kThreads / kThreadsX;
  static constexpr int kRows = Config::kBlockM / kThreadsY;
  static constexpr int kKeys = Config::kBlockN / kThreadsX;
  static constexpr int kKeysOut = Config::kBlockN / kThreadsY;
  static constexpr int kDims = kCols / kThreadsX;
  static constexpr int kStep = kThreadsX * kChunkBytes;  // between a thread's chunks of a row
  static_assert(kThreadsX % kLanesX == 0 && kKeysOut % 4 == 0 && kDims % 4 == 0);

  using QTile = Fp32Tile<kCols, kRows>;  // of dout, too
  using KTile = Fp32Tile<kCols, kKeys>;  // of v, too
  using PTile = Fp32Tile<Config::kBlockN, kRows>;

  // Shared memory, in bytes.
  static constexpr int kK = 0;                                    // kBlockN x kCols
  static constexpr int kV = kK + Config::kBlockN * kCols * 4;     // kBlockN x kCols
  static constexpr int kQ = kV + Config::kBlockN * kCols * 4;     // kBlockM x kCols
  static constexpr int kDout = kQ + Config::kBlockM * kCols * 4;  // kBlockM x kCols
  static constexpr int kP = kDout + Config::kBlockM * kCols * 4;  // kBlockM x kBlockN
  static constexpr int kDs = kP + Config::kBlockM * Config::kBlockN * 4;
  static constexpr int kStatistics = kDs + Config::kBlockM * Config::kBlockN * 4;  // kBlockM
  static constexpr int kEnd = kStatistics + Config::kBlockM * int{sizeof(RowStatistics)};
  static_assert(kEnd == Config::kSmemBytes);
};

// A thread's place: a warp is 8 lanes wide and 4 high, the warps of a block fill the grid row by row.
template <class Config>
struct Fa2ThreadPlace {
  int x;
  int y;

  [[nodiscard]] static __device__ __forceinline__ Fa2ThreadPlace mine() {
    constexpr int kLanesX = Fa2BackwardShape<Config>::kLanesX;
    constexpr int kWarpsX = Config::kThreadsX / kLanesX;
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    return {warp % kWarpsX * kLanesX + lane % kLanesX, warp / kWarpsX * (32 / kLanesX) + lane / kLanesX};
  }
};

// memory[0..3] += value.
template <class Config>
__device__ __forceinline__ void add_to_memory(float* memory, const float4& value, int columns) {
#if __CUDA_ARCH__ >= 900
  if constexpr (Config::kAligned) {
    asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(memory), "f"(value.x), "f"(value.y),
                 "f"(value.z), "f"(value.w)
                 : "memory");
    return;
  }
#endif
#pragma unroll
  for (int c = 0; c < kChunkFloats; ++c) {
    if (Config::kAligned || c < columns) atomicAdd(memory + c, element(value, c));
  }
}

// factor * gradient[i] to row i of out (added if kAdd), rows below num_rows.
template <class Config, bool kAdd, int kM, int kDims>
__device__ __forceinline__ void write_gradient(const float (&gradient)[kM][kDims], float factor, float* out,
                                               int64 row_stride, int64 num_rows, int thread_x) {
#pragma unroll
  for (int i = 0; i < kM; ++i) {
    if (i >= num_rows) break;
#pragma unroll
    for (int d = 0; d < kDims; d += 4) {
      const int col = (d / 4 * Config::kThreadsX + thread_x) * 4;
      if (col >= Config::kHeadDim) continue;
      const float4 value = make_float4(gradient[i][d] * factor, gradient[i][d + 1] * factor,
                                       gradient[i][d + 2] * factor, gradient[i][d + 3] * factor);
      float* place = out + i * row_stride + col;
      if constexpr (kAdd) {
        add_to_memory<Config>(place, value, Config::kHeadDim - col);
      } else if constexpr (Config::kAligned) {
        *reinterpret_cast<float4*>(place) = value;
      } else {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          if (col + c < Config::kHeadDim) place[c] = element(value, c);
        }
      }
    }
  }
}

// One query head's rows as a key tile's block walks over them.
struct RowWalk {
  const float* q;
  const float* dout;
  const RowStatistics* statistics;
  int64 q_stride;
  int64 dout_stride;
  int64 seqlen_q;

  // Starts the copies of the tile of rows from `row` on.
  template <class Config>
  __device__ __forceinline__ void copy_async_tile(int64 row) const {
    using Shape = Fa2BackwardShape<Config>;
    copy_tile_async<Config, Config::kBlockM, Shape::kCols, Shape::kRows>(Shape::kQ, q + row * q_stride, q_stride,
                                                                         seqlen_q - row);
    copy_tile_async<Config, Config::kBlockM, Shape::kCols, Shape::kRows>(Shape::kDout, dout + row * dout_stride,
                                                                         dout_stride, seqlen_q - row);
    constexpr int kChunks = Config::kBlockM * sizeof(RowStatistics) / kChunkBytes;
    for (int chunk = threadIdx.x; chunk < kChunks; chunk += Config::kThreads) {
      const auto* from = reinterpret_cast<const float*>(statistics + row) + chunk * kChunkFloats;
      copy_async<kChunkBytes>(Shape::kStatistics + chunk * kChunkBytes, from, true);
    }
  }
};

// p and ds of a tile, from registers to shared memory.
template <class Config>
__device__ __forceinline__ void score_gradients(const WindowMask& mask, bool masked, int64 row, int64 key, float scale,
                                                const Fa2ThreadPlace<Config>& me) {
  using Shape = Fa2BackwardShape<Config>;
  constexpr int kRows = Shape::kRows, kKeys = Shape::kKeys;
  float s[kRows][kKeys] = {};
  multiply_rows<kRows, kKeys, Shape::kCols>(s, Shape::kQ + Shape::QTile::offset(me.y * kRows, 0),
                                            Shape::kK + Shape::KTile::offset(me.x * kKeys, 0));
  if constexpr (Config::kNegateScores) negate(s);
  if (masked) mask_scores(s, mask, row + me.y * kRows, key + me.x * kKeys);
  const auto* rows = reinterpret_cast<const RowStatistics*>(fp32_smem + Shape::kStatistics) + me.y * kRows;
  const float scale_log2 = scale * kLog2E;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int j = 0; j < kKeys; ++j) s[i][j] = exp2_fast(fmaf(s[i][j], scale_log2, -rows[i].lse_log2));
  }
  store_scores<typename Shape::PTile>(s, Shape::kP, me.y * kRows, me.x * kKeys);

  float dp[kRows][kKeys] = {};
  multiply_rows<kRows, kKeys, Shape::kCols>(dp, Shape::kDout + Shape::QTile::offset(me.y * kRows, 0),
                                            Shape::kV + Shape::KTile::offset(me.x * kKeys, 0));
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int j = 0; j < kKeys; ++j) s[i][j] *= dp[i][j] - rows[i].delta;
  }
  store_scores<typename Shape::PTile>(s, Shape::kDs, me.y * kRows, me.x * kKeys);
}

// dk and dv of one tile of kBlockN keys, and its share of dq. Grid: tiles of every key head.
template <class Config>
__device__ void fa2_backward(const BackwardArgs& args) {
  using Shape = Fa2BackwardShape<Config>;
  constexpr int kCols = Shape::kCols, kRows = Shape::kRows, kKeysOut = Shape::kKeysOut, kDims = Shape::kDims;
  constexpr bool kCausal = Config::kMask == MaskKind::kCausal;
  const auto key_tiles = static_cast<uint32>(num_tiles(args.seqlen_k, Config::kBlockN));
  // Causal: the first tiles are seen by the most rows and go first.
  const auto [batch, head_k, tile] = kCausal ? tile_by_tile(blockIdx.x, args.batch, args.num_heads_k)
                                             : HeadTile::of_block(blockIdx.x, key_tiles, args.num_heads_k);
  const int64 key = tile * Config::kBlockN;
  const WindowMask mask = {args.seqlen_q, args.seqlen_k, kOpenWindow, kCausal ? 0 : kOpenWindow};
  const int64 first_row = mask.rows_of_key(key).begin / Config::kBlockM * Config::kBlockM;
  const float scale = Config::kNegateScores ? -args.scale : args.scale;
  const auto me = Fa2ThreadPlace<Config>::mine();
  const int chunk_x = me.x * kChunkBytes;

  const float* k = static_cast<const float*>(args.k) + args.k_stride.offset(batch, head_k, key);
  const float* v = static_cast<const float*>(args.v) + args.v_stride.offset(batch, head_k, key);
  copy_tile_async<Config, Config::kBlockN, kCols, Shape::kKeys>(Shape::kK, k, args.k_stride.row, args.seqlen_k - key);
  copy_tile_async<Config, Config::kBlockN, kCols, Shape::kKeys>(Shape::kV, v, args.v_stride.row, args.seqlen_k - key);

  float dk[kKeysOut][kDims] = {};
  float dv[kKeysOut][kDims] = {};
  const uint32 group = args.num_heads_q / args.num_heads_k;
#pragma unroll 1
  for (uint32 head = head_k * group; head < (head_k + 1) * group; ++head) {
    const RowWalk walk = {static_cast<const float*>(args.q) + args.q_stride.offset(batch, head, 0),
                          static_cast<const float*>(args.dout) + args.dout_stride.offset(batch, head, 0),
                          row_statistics<Config>(args, batch, head),
                          args.q_stride.row,
                          args.dout_stride.row,
                          args.seqlen_q};
    float* dq = static_cast<float*>(args.dq) + args.dq_stride.offset(batch, head, 0);
    if (first_row < args.seqlen_q) walk.copy_async_tile<Config>(first_row);
#pragma unroll 1
    for (int64 row = first_row; row < args.seqlen_q; row += Config::kBlockM) {
      wait_for_copies();
      __syncthreads();  // waits for the tiles; every warp has left ds k of the tile before: ds may be overwritten
      const bool masked = key + Config::kBlockN > mask.row(row).end;
      score_gradients<Config>(mask, masked, row, key, args.scale, me);
      __syncthreads();  // p and ds are complete
      multiply_columns<kKeysOut, kDims, Config::kBlockM, Config::kBlockN, kCols, kRows, Shape::kStep>(
          dv, Shape::kP, me.y * kKeysOut * 4, Shape::kDout, chunk_x);
      multiply_columns<kKeysOut, kDims, Config::kBlockM, Config::kBlockN, kCols, kRows, Shape::kStep>(
          dk, Shape::kDs, me.y * kKeysOut * 4, Shape::kQ, chunk_x);
      __syncthreads();  // every warp is done with q, dout and the statistics: the next ones may come
      if (row + Config::kBlockM < args.seqlen_q) walk.copy_async_tile<Config>(row + Config::kBlockM);
      float dq_part[kRows][kDims] = {};
      multiply_matrix<kRows, kDims, Config::kBlockN, kCols, Shape::kKeys, Shape::kStep>(
          dq_part, Shape::kDs + Shape::PTile::offset(me.y * kRows, 0), Shape::kK, chunk_x);
      const int64 my_row = row + me.y * kRows;
      write_gradient<Config, true>(dq_part, scale, dq + my_row * args.dq_stride.row, args.dq_stride.row,
                                   args.seqlen_q - my_row, me.x);
    }
  }
  const int64 my_key = key + me.y * kKeysOut;
  const int64 keys_left = args.seqlen_k - my_key;
  float* dk_out = static_cast<float*>(args.dk) + args.dk_stride.offset(batch, head_k, my_key);
  float* dv_out = static_cast<float*>(args.dv) + args.dv_stride.offset(batch, head_k, my_key);
  write_gradient<Config, false>(dk, scale, dk_out, args.dk_stride.row, keys_left, me.x);
  write_gradient<Config, false>(dv, 1.0f, dv_out, args.dv_stride.row, keys_left, me.x);
}

}  // namespace attend
