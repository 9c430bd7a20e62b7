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

  // The tile's q, k and v in the order in which they are wanted: v of a tile of keys after k of the next. By one lane.
  __device__ __forceinline__ void load_tile(const Sm90Work& work) {
    const Sm90KeyTiles tiles =
        key_tiles_of_rows<Config, Shape::kBlockM>(sm90_mask<Config>(args.options, work), work.row);
    if (tiles.begin >= tiles.end) return;  // the consumers touch no barrier of q, k and v either
    const int head = work.head / static_cast<int>(args.base.num_heads_q / args.base.num_heads_k);
    const int batch = Config::kIsVarlen ? 0 : work.sequence;
    load_k(work.k_begin + (tiles.end - 1) * Config::kBlockN, head, batch);
    load_q(work, batch);
#pragma unroll 1
    for (int n = tiles.end - 2; n >= tiles.begin; --n) {
      load_k(work.k_begin + n * Config::kBlockN, head, batch);
      load_v(work.k_begin + (n + 1) * Config::kBlockN, head, batch);
    }
    load_v(work.k_begin + tiles.begin * Config::kBlockN, head, batch);
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
      walk.take();  // its answer comes while this tile is loaded
      if (threadIdx.x % 32 == 0) load_tile(work);
      __syncwarp();
      walk.advance();
    }
  }
};

}  // namespace attend
