// sm80_forward: computes o = drop(softmax(s)) v and lse on the tensor cores of Ampere and later GPUs, with every option
// of the interface.
//
// Shapes   q (batch, heads, seqlen_q, d), k (batch, heads_k, seqlen_k, d), v (batch, heads_k, seqlen_k, d_v), o (batch,
//          heads, seqlen_q, d_v), or packed sequences. The last stride must be 1. The other strides and the alignment
//          are arbitrary.
// Supports float16 and bfloat16, d and d_v from 1 to 512, and every option. Requires sm_80 or later.
// Work     A thread block has kBlockM query rows of a head. If d_v is large, the columns of o are divided among
//          kColumnParts blocks. Each warp has kRowGroups times 16 rows, iterates over their key tiles and skips tiles
//          that none of these rows sees. For each tile it computes s = q k^T, applies modifications and masks, computes
//          the softmax, and adds p v to o. Meanwhile the next tile is loaded.
// Memory   Sm80Storage holds q and two buffers of k and v, in panels of 64 columns. o is assembled in the memory of q.
// Costs    Each warp must wait for its own softmax before its next product. The work of other warps hides this wait. If
//          Config::kTrails is set, the product p v of the previous tile hides it too (sm80_trailing.cuh). If o leaves
//          enough registers, two groups of rows share each operand of k and v. Otherwise two warps share rows
//          (sm80_split.cuh). If the scores have no modification except masks, the kernel avoids the search for row
//          maxima (sm80_softmax.cuh).
// Measured TFLOP/s on an H200 with CUDA 13.0 and bfloat16. The inputs have 16384 query rows in total, and 2048 columns
//          over all heads. Each list of three figures is for head_dim 64, 128 and 256. With 2048 keys, the kernel
//          reaches 330, 372 and 331 with a full mask, and 290, 328 and 296 with a causal mask. With 16384 keys, it
//          reaches 361, 399 and 355 with a full mask, and 382, 404 and 359 with a causal mask. With dropout, a full
//          mask and 8192 keys, it reaches 117 with head_dim 64, and 181 with head_dim 128. No other GPU was measured.
//          docs/ampere.md has more. Called by the backend 'sm80_forward' (src/cuda/launch/sm80_forward.cpp).
//          sm80_forward_variant.cpp chooses the tile sizes. Source Dao, FlashAttention-2 (2023), Algorithm 1.
//          FlashAttention-4 (2025) introduced row maxima that lag behind.
#pragma once

#include "sm80_epilogue.cuh"
#include "sm80_long_sum.cuh"
#include "sm80_split.cuh"
#include "sm80_trailing.cuh"
#include "sm80_weights.cuh"

namespace attend {

// Starts the copies of a tile of which the first `rows` rows and `columns` columns exist. row_stride is in elements.
template <class Config, class Tile>
__device__ __forceinline__ void sm80_send(Tile& tile, const Bits16* source, int64 row_stride, int64 rows, int columns) {
  const auto rows_of_tile = static_cast<int>(min(rows, int64{Tile::kRows}));
  if constexpr (Config::kCopyBytes == 16) {
    load_tile<Config::kThreads>(tile, source, row_stride, rows_of_tile, columns);
  } else {
    PieceLoader<Config, Tile>(source, row_stride).load(tile, row_stride, rows_of_tile, columns);
  }
}

// Starts to copy the keys of key tile n to buffer `buffer`.
template <class Config>
__device__ __forceinline__ void sm80_send_k(const ForwardArgs& args, Sm80Storage<Config>& smem, const Sm80Keys& keys,
                                            int n, int buffer) {
  const int64 key = int64{n} * Config::kBlockN;
  sm80_send<Config>(smem.stage_of(buffer).k, keys.k + key * args.k_stride.row, args.k_stride.row, keys.seqlen - key,
                    Config::kHeadDim);
}

// Starts to copy the values of key tile n to buffer `buffer`.
template <class Config>
__device__ __forceinline__ void sm80_send_v(const ForwardArgs& args, Sm80Storage<Config>& smem, const Sm80Keys& keys,
                                            int first_column, int n, int buffer) {
  const int64 key = int64{n} * Config::kBlockN;
  const int columns = min(Sm80Shape<Config>::kColumnsV, Config::kHeadDimV - first_column);
  sm80_send<Config>(smem.stage_of(buffer).v, keys.v + key * args.v_stride.row, args.v_stride.row, keys.seqlen - key,
                    columns);
}

// Starts to copy the keys of tile k_tile and the values of tile v_tile. Skips a tile that the block does not need.
// Called during a step that still reads the other buffers.
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

// Visibility of a key tile for the query rows of a warp. Used if there is a block map.
struct Sm80WarpView {
  bool is_seen;   // some row sees some key of the tile
  bool is_whole;  // all rows see all keys of the tile

  template <class Config>
  [[nodiscard]] static __device__ __forceinline__ Sm80WarpView of(const Sm80Block<Config>& block,
                                                                  const Sm80WarpTiles& own, int n) {
    constexpr int kRows = Sm80Shape<Config>::kRowsOfWarp;
    const int64 row = block.work.row + sm80_first_row<Config>(0), key = int64{n} * Config::kBlockN;
    return {own.seen.has(n) && block.rules.map.template sees_any<kRows, Config::kBlockN>(row, key),
            own.whole.has(n) && block.rules.map.template sees_all<kRows, Config::kBlockN>(row, key)};
  }
};

// Processes all key tiles, from the last to the first. In this order, the tile that needs a mask is usually also the
// one that needs the search for row maxima. Copies of the last tile must already be in flight.
template <class Config>
__device__ __forceinline__ void sm80_attend_tiles(Sm80Rows<Config> (&rows)[Config::kRowGroups],
                                                  Sm80Storage<Config>& smem, const ForwardArgs& args) {
  const Sm80LongSum<Config> long_sum = {reinterpret_cast<float*>(&smem + 1)};
  long_sum.clear();
#pragma unroll 1
  for (int n = smem.block.keys.tiles.end - 1; n >= smem.block.keys.tiles.begin; --n) {
    const Sm80WarpTiles own = smem.block.own[recomputed(threadIdx.x) / 32];
    cp_async_wait<0>();  // waits for this thread's copies of tile n
    // Waits for the copies of all threads. The previous tile, in the other buffer, has been read and may be
    // overwritten.
    __syncthreads();
    if (n > smem.block.keys.tiles.begin) {
      sm80_send_k(args, smem, smem.block.keys, n - 1, n - 1);
      sm80_send_v(args, smem, smem.block.keys, smem.block.work.first_column_v(), n - 1, n - 1);
    }
    cp_async_commit();
    if (own.seen.has(n)) {
      sm80_weights(rows, smem, n, n, own.whole.has(n), n + 1 == own.seen.end);
      // The address is selected from two constants, because a computed address would occupy a register.
      sm80_multiply_pv(rows, n % kSm80Stages == 0 ? smem.stage[0].v : smem.stage[1].v);
    }
    long_sum.put_aside(rows, n, smem.block.scale_log2);
  }
  long_sum.add_to(rows, smem.block.scale_log2);
}

// Processes the key tiles that a block map does not skip. The two buffers alternate, so a tile's buffer does not depend
// on its number.
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
    cp_async_wait<0>();  // waits for this thread's copies of tile n
    // Waits for the copies of all threads. The previous tile, in the other buffer, has been read and may be
    // overwritten.
    __syncthreads();
    next = sm80_tile_before(smem.block.rules.map, smem.block.work.row, n, tiles.begin);
    if (next >= tiles.begin) {
      sm80_send_k(args, smem, smem.block.keys, next, buffer - 1);
      sm80_send_v(args, smem, smem.block.keys, smem.block.work.first_column_v(), next, buffer - 1);
    }
    cp_async_commit();
    const auto view = Sm80WarpView::of(smem.block, own, n);
    if (view.is_seen) {
      const bool is_first = n + 1 == own.seen.end;  // the map may skip this tile for the warp; in the warp's next tile,
                                                    // m is then too small and is raised
      sm80_weights(rows, smem, n, buffer, view.is_whole, is_first);
      sm80_multiply_pv(rows, buffer % kSm80Stages == 0 ? smem.stage[0].v : smem.stage[1].v);
    }
    long_sum.put_aside(rows, buffer, smem.block.scale_log2);  // counts only the tiles that are processed
  }
  long_sum.add_to(rows, smem.block.scale_log2);
}

// Processes all key tiles from the last to the first. The product p v of each tile follows s of the next tile. When
// this function is called, the keys of the last tile may still be arriving, but no other copies may be in flight.
template <class Config>
__device__ __forceinline__ void sm80_attend_trailing(Sm80Rows<Config> (&rows)[Config::kRowGroups],
                                                     Sm80Storage<Config>& smem, const ForwardArgs& args) {
#pragma unroll 1
  for (int n = smem.block.keys.tiles.end - 1; n >= smem.block.keys.tiles.begin - 1; --n) {
    const Sm80WarpTiles own = smem.block.own[recomputed(threadIdx.x) / 32];
    cp_async_wait<0>();  // waits for this thread's copies: k of tile n, and v of tile n + 1
    // Waits for the copies of all threads. k of tile n + 1 and v of tile n + 2 have been read and may be overwritten.
    __syncthreads();
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
  if (work.row >= span.seqlen_q) return;  // the grid covers the longest packed sequence, and this one is shorter
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
  cp_async_wait<1>();  // waits for this thread's copies of q; copies of k and v may still be in flight
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
