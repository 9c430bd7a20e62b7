// sm80_forward: o = drop(softmax(s)) v and lse, with every option of the interface, on the tensor cores of Ampere and
// later GPUs.
//
// Shapes   q (batch, heads, seqlen_q, d), k (batch, heads_k, seqlen_k, d), v (batch, heads_k, seqlen_k, d_v) and o; any
//          strides whose last is 1, any alignment; packed sequences
// Supports float16 and bfloat16, d and d_v from 1 to 512, every option. sm_80 and later
// Work     a block has kBlockM query rows of a head and, if d_v is wide, one of kColumnParts parts of the columns of o.
//          A warp has kRowGroups times 16 rows with all their keys, and skips tiles of keys that none of them sees.
//          For each tile: s = q k^T, modifications and masks, the softmax, o += p v. The next tile is loaded meanwhile
// Memory   q, two buffers of k and v, in panels of 64 columns (Sm80Storage). o is assembled in the memory of q
// Costs    a warp waits for its own softmax. The work of other warps hides this wait. With Config::kTrails, p v of the
//          previous tile hides it too (sm80_trailing.cuh). If o leaves enough registers, two groups of rows share each
//          operand of k and v. Otherwise two warps share rows (sm80_split.cuh). If only masks modify scores, no maximum
//          is searched (sm80_softmax.cuh)
// Measured bf16, H200, CUDA 13.0, TFLOP/s full, causal, of 16384 rows of 2048 columns in all, 2048 and 16384 keys:
//          head_dim 64: 330 290, 361 382; 128: 372 328, 399 404; 256: 331 296, 355 359. With dropping, full, 8192 keys:
//          64: 117, 128: 181. No other GPU was measured. docs/ampere.md has more
// Called   by compute 'sm80_forward': src/cuda/launch/sm80_forward.cpp; tiles: sm80_forward_variant.cpp
// Source   Dao, FlashAttention-2 (2023), Algorithm 1; the lagging maximum: FlashAttention-4 (2025)
#pragma once

#include "sm80_epilogue.cuh"
#include "sm80_long_sum.cuh"
#include "sm80_split.cuh"
#include "sm80_trailing.cuh"
#include "sm80_weights.cuh"

namespace attend {

// Starts the copies of a tile. Its first `rows` rows and `columns` columns exist. row_stride is in elements.
template <class Config, class Tile>
__device__ __forceinline__ void sm80_send(Tile& tile, const Bits16* source, int64 row_stride, int64 rows, int columns) {
  const auto rows_of_tile = static_cast<int>(min(rows, int64{Tile::kRows}));
  if constexpr (Config::kCopyBytes == 16) {
    load_tile<Config::kThreads>(tile, source, row_stride, rows_of_tile, columns);
  } else {
    PieceLoader<Config, Tile>(source, row_stride).load(tile, row_stride, rows_of_tile, columns);
  }
}

// Starts the copies of k of tile n, to buffer number `buffer`.
template <class Config>
__device__ __forceinline__ void sm80_send_k(const ForwardArgs& args, Sm80Storage<Config>& smem, const Sm80Keys& keys,
                                            int n, int buffer) {
  const int64 key = int64{n} * Config::kBlockN;
  sm80_send<Config>(smem.stage_of(buffer).k, keys.k + key * args.k_stride.row, args.k_stride.row, keys.seqlen - key,
                    Config::kHeadDim);
}

// Starts the copies of v of tile n, to buffer number `buffer`.
template <class Config>
__device__ __forceinline__ void sm80_send_v(const ForwardArgs& args, Sm80Storage<Config>& smem, const Sm80Keys& keys,
                                            int first_column, int n, int buffer) {
  const int64 key = int64{n} * Config::kBlockN;
  const int columns = min(Sm80Shape<Config>::kColumnsV, Config::kHeadDimV - first_column);
  sm80_send<Config>(smem.stage_of(buffer).v, keys.v + key * args.v_stride.row, args.v_stride.row, keys.seqlen - key,
                    columns);
}

// Called after tile n: starts the copies of k of tile k_tile and v of tile v_tile, if the block has these tiles.
template <class Config>
__device__ __forceinline__ void sm80_send_next(const ForwardArgs& args, Sm80Storage<Config>& smem, int k_tile,
                                               int v_tile) {
  const Sm80Block<Config>& block = smem.block;
  if (k_tile >= block.keys.tiles.begin) sm80_send_k(args, smem, block.keys, k_tile, k_tile);
  if (v_tile >= block.keys.tiles.begin) {
    sm80_send_v(args, smem, block.keys, block.work.first_column_v(), v_tile, v_tile);
  }
  cp_async_commit();
}

// The part of a key tile that a warp's rows see, with a block map.
struct Sm80WarpView {
  bool is_seen;   // some row sees some key
  bool is_whole;  // all rows see all keys

  template <class Config>
  [[nodiscard]] static __device__ __forceinline__ Sm80WarpView of(const Sm80Block<Config>& block,
                                                                  const Sm80WarpTiles& own, int n) {
    constexpr int kRows = Sm80Shape<Config>::kRowsOfWarp;
    const int64 row = block.work.row + sm80_first_row<Config>(0), key = int64{n} * Config::kBlockN;
    return {own.seen.has(n) && block.rules.map.template sees_any<kRows, Config::kBlockN>(row, key),
            own.whole.has(n) && block.rules.map.template sees_all<kRows, Config::kBlockN>(row, key)};
  }
};

// Processes all key tiles, the last one first. The search for the first maxima and the masks then fall on the same
// tile. Copies of this tile must be in flight.
template <class Config>
__device__ __forceinline__ void sm80_attend_tiles(Sm80Rows<Config> (&rows)[Config::kRowGroups],
                                                  Sm80Storage<Config>& smem, const ForwardArgs& args) {
  const Sm80LongSum<Config> long_sum = {reinterpret_cast<float*>(&smem + 1)};
  long_sum.clear();
#pragma unroll 1
  for (int n = smem.block.keys.tiles.end - 1; n >= smem.block.keys.tiles.begin; --n) {
    const Sm80WarpTiles own = smem.block.own[recomputed(threadIdx.x) / 32];
    cp_async_wait<0>();  // waits for the thread's own copies of tile n
    __syncthreads();     // waits for all threads' copies. The previous tile, in the other buffer, has been read, and
                         // may be overwritten
    if (n > smem.block.keys.tiles.begin) {
      sm80_send_k(args, smem, smem.block.keys, n - 1, n - 1);
      sm80_send_v(args, smem, smem.block.keys, smem.block.work.first_column_v(), n - 1, n - 1);
    }
    cp_async_commit();
    if (own.seen.has(n)) {
      sm80_weights(rows, smem, n, n, own.whole.has(n), n + 1 == own.seen.end);
      // Selected from two constants: a computed address of v would occupy a register.
      sm80_multiply_pv(rows, n % kSm80Stages == 0 ? smem.stage[0].v : smem.stage[1].v);
    }
    long_sum.put_aside(rows, n, smem.block.scale_log2);
  }
  long_sum.add_to(rows, smem.block.scale_log2);
}

// Processes the tiles that a block map does not skip. Buffers alternate, independently of the tile numbers.
template <class Config>
__device__ __forceinline__ void sm80_attend_seen_tiles(Sm80Rows<Config> (&rows)[Config::kRowGroups],
                                                       Sm80Storage<Config>& smem, const ForwardArgs& args) {
  const Sm80LongSum<Config> long_sum = {reinterpret_cast<float*>(&smem + 1)};
  const Sm80KeyTiles& tiles = smem.block.keys.tiles;
  long_sum.clear();
  int n = tiles.end - 1;
#pragma unroll 1
  for (int buffer = n, next; n >= tiles.begin; n = next, --buffer) {
    const Sm80WarpTiles own = smem.block.own[recomputed(threadIdx.x) / 32];
    cp_async_wait<0>();  // waits for the thread's own copies of tile n
    __syncthreads();     // waits for all threads' copies. The previous tile, in the other buffer, has been read, and
                         // may be overwritten
    next = sm80_tile_before(smem.block.rules.map, smem.block.work.row, n, tiles.begin);
    if (next >= tiles.begin) {
      sm80_send_k(args, smem, smem.block.keys, next, buffer - 1);
      sm80_send_v(args, smem, smem.block.keys, smem.block.work.first_column_v(), next, buffer - 1);
    }
    cp_async_commit();
    const auto view = Sm80WarpView::of(smem.block, own, n);
    if (view.is_seen) {
      const bool is_first = n + 1 == own.seen.end;  // the map may skip this tile; the next one then finds m too small,
                                                    // and raises it
      sm80_weights(rows, smem, n, buffer, view.is_whole, is_first);
      sm80_multiply_pv(rows, buffer % kSm80Stages == 0 ? smem.stage[0].v : smem.stage[1].v);
    }
    long_sum.put_aside(rows, buffer, smem.block.scale_log2);  // pieces count only the processed tiles
  }
  long_sum.add_to(rows, smem.block.scale_log2);
}

// Processes all key tiles, with p v of each tile after s of the next one. Only copies of k of the last tile are in
// flight at the start.
template <class Config>
__device__ __forceinline__ void sm80_attend_trailing(Sm80Rows<Config> (&rows)[Config::kRowGroups],
                                                     Sm80Storage<Config>& smem, const ForwardArgs& args) {
#pragma unroll 1
  for (int n = smem.block.keys.tiles.end - 1; n >= smem.block.keys.tiles.begin - 1; --n) {
    const Sm80WarpTiles own = smem.block.own[recomputed(threadIdx.x) / 32];
    cp_async_wait<0>();  // waits for the thread's own copies: k of tile n, and v of tile n + 1
    __syncthreads();     // waits for all threads' copies. k of tile n + 1 and v of tile n + 2 have been read, and may
                         // be overwritten
    const bool has_p = own.seen.has(n + 1);
    const bool is_usual = has_p && own.seen.has(n) && own.whole.has(n);
    if (!Sm80Sends<Config>::kApply || !is_usual) sm80_send_next(args, smem, n - 1, n);
    if (own.seen.has(n)) {
      if (is_usual) {
        sm80_weights_beside_pv(rows, smem, args, n);
      } else {
        if (has_p) sm80_multiply_pv(rows, sm80_v_before(smem, n));
        sm80_first_weights(rows, smem, n, own.whole.has(n));
      }
      sm80_pack_p(rows);
    } else if (has_p) {
      sm80_multiply_pv(rows, sm80_v_before(smem, n));
    }
  }
}

template <class Config>
__device__ void sm80_forward(const ForwardOptionArgs& args) {
  using Shape = Sm80Shape<Config>;
  using Storage = Sm80Storage<Config>;
  static_assert(sizeof(Storage) + Sm80LongSum<Config>::kBytes == Config::kSmemBytes);
  static_assert(Shape::kBlockM == Config::kBlockM);
  static_assert(!has_block_map<Config>() || (!Config::kTrails && Config::kSplits == 1), "these ask for neighbours");
  static_assert(
      !Config::kSpeculates || (kFoldsScale<Config> && !Score<Config>::kMasksFromMemory && !Score<Config>::kDrops),
      "nothing but masks between q.k and p");
  extern __shared__ __align__(kSwizzleAtom) unsigned char smem_bytes[];
  auto& smem = *reinterpret_cast<Storage*>(smem_bytes);

  const auto work = Sm80Work<Config>::mine(args.base);
  const SequenceSpan span = sequence_span<Config>(args.base, args.options, work.sequence);
  if (work.row >= span.seqlen_q) return;  // a packed sequence shorter than the longest
  const auto keys = Sm80Keys::of(args, work, span);
  const auto* q = static_cast<const Bits16*>(args.base.q) + span.query_offset(args.base.q_stride, work.head, work.row);
  sm80_send<Config>(smem.q_or_o, q, args.base.q_stride.row, span.seqlen_q - work.row, Config::kHeadDim);
  cp_async_commit();
  if (keys.tiles.begin < keys.tiles.end) {
    const int last = keys.tiles.end - 1;
    sm80_send_k(args.base, smem, keys, last, last);
    if (!Config::kTrails) sm80_send_v(args.base, smem, keys, work.first_column_v(), last, last);
  }
  cp_async_commit();
  Sm80Block<Config>::make(smem.block, args, work, span, keys);
  cp_async_wait<1>();  // waits for the thread's own copies of q; copies of keys may still be in flight
  __syncthreads();     // waits for all threads' copies of q, and until the block's work is set

  Sm80Rows<Config> rows[Config::kRowGroups];
  if constexpr (Config::kQInRegisters) {
#pragma unroll
    for (int i = 0; i < Config::kRowGroups * Shape::kDepth; i += kMmaDepth) {
      rows[i / Shape::kDepth].q[i % Shape::kDepth / kMmaDepth] =
          sm80_read_q<Config>(smem.q_or_o, threadIdx.x, i / Shape::kDepth, i % Shape::kDepth);
    }
  }
  sm80_park(rows, smem);
  if constexpr (Config::kSplits > 1) {
    sm80_attend_split(rows, smem, args.base);
  } else if constexpr (has_block_map<Config>()) {
    sm80_attend_seen_tiles(rows, smem, args.base);
  } else if constexpr (Config::kTrails) {
    sm80_attend_trailing(rows, smem, args.base);
  } else {
    sm80_attend_tiles(rows, smem, args.base);
  }
  sm80_fetch(rows, smem);
  sm80_store_rows(args, smem, rows, score_scale(smem.block.rules));
}

}  // namespace attend
