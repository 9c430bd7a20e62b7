// The warp that loads.
#pragma once

#include "../common/tma_panel.cuh"
#include "sm90_work.cuh"

namespace attend {

// Where the producer is in its rings; runs on from tile to tile.
template <class Config>
struct Sm90Producer {
  using Shape = Sm90Shape<Config>;
  Sm90Storage<Config>& smem;
  const Sm90ForwardArgs& args;
  RingPlace<Config::kQBuffers> q_at = {};
  RingPlace<Config::kStages> k_at = {};
  RingPlace<Config::kStages> v_at = {};
  RingPlace<kSm90WorkSlots> work_at = {};

  template <int kPanels>
  static __device__ __forceinline__ void load(unsigned char* to, int panel_bytes, int bytes, const TensorMapArg& map,
                                              Mbarrier& full, int row, int head, int batch) {
    full.arrive_expect_bytes(bytes);
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      tma_load_panel(smem_address(to) + panel * panel_bytes, map, full, {panel * kPanelColumns, row, head, batch});
    }
  }

  // Each waits until its buffer is free. A wait for the parity before the first passes: fresh barriers are free.
  __device__ __forceinline__ void load_q(const Sm90Work& work, int batch) {
    smem.q_empty[q_at.buffer()].wait(q_at.parity() ^ 1);
    load<Shape::kPanelsQk>(smem.q[q_at.buffer()], Shape::kPanelBytesQ, Shape::kPanelsQk * Shape::kPanelBytesQ, args.q_map,
                           smem.q_full[q_at.buffer()], work.q_begin + work.row, work.head, batch);
    q_at.advance();
  }
  __device__ __forceinline__ void load_k(int key, int head, int batch) {
    smem.k_empty[k_at.buffer()].wait(k_at.parity() ^ 1);
    load<Shape::kPanelsQk>(smem.k[k_at.buffer()], Shape::kPanelBytesK, Shape::kKBytes, args.k_map, smem.k_full[k_at.buffer()],
                           key, head, batch);
    k_at.advance();
  }
  __device__ __forceinline__ void load_v(int key, int head, int batch) {
    smem.v_empty[v_at.buffer()].wait(v_at.parity() ^ 1);
    load<Shape::kPanelsV>(smem.v[v_at.buffer()], Shape::kPanelBytesK, Shape::kVBytes, args.v_map, smem.v_full[v_at.buffer()],
                          key, head, batch);
    v_at.advance();
  }

  // The tile's q, k and v in the order in which they are wanted: v of a tile of keys after k of the next. Half-way it is
  // time to look after the next tile of rows. By one warp, of which one lane loads.
  __device__ __forceinline__ void load_tile(const Sm90Work& work, Sm90TileWalk<Config>& walk) {
    const Sm90KeyTiles tiles =
        key_tiles_of_rows<Config, Shape::kBlockM>(sm90_mask<Config>(args.options, work), work.row);
    const int head = work.head / static_cast<int>(args.base.num_heads_q / args.base.num_heads_k);
    const int batch = Config::kIsVarlen ? 0 : work.sequence;
    const bool is_loader = threadIdx.x % 32 == 0;
    const bool has_keys = tiles.begin < tiles.end;  // if not, the consumers touch no barrier of q, k and v either
    if (is_loader && has_keys) {
      load_k(work.k_begin + (tiles.end - 1) * Config::kBlockN, head, batch);
      load_q(work, batch);
    }
    const int half_way = (tiles.begin + tiles.end - 1) / 2;
#pragma unroll 1
    for (int n = tiles.end - 2; n >= tiles.begin; --n) {
      if (n == half_way) prefetch_next(walk);
      if (is_loader) {
        load_k(work.k_begin + n * Config::kBlockN, head, batch);
        load_v(work.k_begin + (n + 1) * Config::kBlockN, head, batch);
      }
      __syncwarp();
    }
    if (tiles.end - tiles.begin < 2) prefetch_next(walk);
    if (is_loader && has_keys) load_v(work.k_begin + tiles.begin * Config::kBlockN, head, batch);
    __syncwarp();
  }

  __device__ __forceinline__ void prefetch_next(Sm90TileWalk<Config>& walk) {
    walk.advance();
    if (Config::kPrefetch && threadIdx.x % 32 == 0) prefetch(walk.tile());
    __syncwarp();
  }

  // Asks for q, and for the keys of the same numbers, of the tile after this one: blocks with other rows of the head ask
  // for its other keys. By one lane.
  __device__ __forceinline__ void prefetch(const Sm90Work& work) {
    if (work.sequence == Sm90Work::kNoWork) return;
    const int head = work.head / static_cast<int>(args.base.num_heads_q / args.base.num_heads_k);
    const int batch = Config::kIsVarlen ? 0 : work.sequence;
#pragma unroll
    for (int panel = 0; panel < Shape::kPanelsQk; ++panel) {
      tma_prefetch_panel(args.q_map, {panel * kPanelColumns, work.q_begin + work.row, work.head, batch});
    }
    for (int key = work.row; key < min(work.row + Shape::kBlockM, work.seqlen_k); key += Config::kBlockN) {
#pragma unroll
      for (int panel = 0; panel < Shape::kPanelsQk; ++panel) {
        tma_prefetch_panel(args.k_map, {panel * kPanelColumns, work.k_begin + key, head, batch});
      }
#pragma unroll
      for (int panel = 0; panel < Shape::kPanelsV; ++panel) {
        tma_prefetch_panel(args.v_map, {panel * kPanelColumns, work.k_begin + key, head, batch});
      }
    }
  }

  // By one warp.
  __device__ __forceinline__ void run() {
    Sm90TileWalk<Config> walk(args);
    for (;;) {
      const Sm90Work work = walk.tile();
      smem.work_empty[work_at.buffer()].wait(work_at.parity() ^ 1);  // all have read what was announced in this slot before
      if (threadIdx.x % 32 == 0) {
        smem.work[work_at.buffer()] = work;
        smem.work_full[work_at.buffer()].arrive();
      }
      work_at.advance();
      if (work.sequence == Sm90Work::kNoWork) return;
      walk.take();  // load_tile() advances to it
      load_tile(work, walk);
    }
  }
};

}  // namespace attend
