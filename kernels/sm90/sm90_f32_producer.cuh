// The loading warp of sm90_f32_forward. One of its lanes issues the copies of pieces. The warp skips heads that are
// marked as wide (sm90_f32_split.cuh).
#pragma once

#include "../isa/wgmma.cuh"
#include "../tiles/tma_panel.cuh"
#include "sm90_f32_args.cuh"
#include "sm90_f32_storage.cuh"
#include "sm90_work.cuh"

namespace attend {

// Position of the pieces of a query tile and of its head's keys.
template <class Config>
struct F32Place {
  int head_q;  // index of the head in q_map
  int head_k;
  int first_q;  // row of pieces at which the sequence starts in q_map
  int first_k;

  [[nodiscard]] static __device__ __forceinline__ F32Place of(const Sm90F32ForwardArgs& args, const Sm90Work& work) {
    const int heads_q = static_cast<int>(args.base.num_heads_q), heads_k = static_cast<int>(args.base.num_heads_k);
    const int head_k = work.head / (heads_q / heads_k);
    if constexpr (Config::kIsVarlen) {
      return {work.head, head_k, static_cast<int>(F32PieceRows::first(work.q_begin, work.sequence, kSm90ConsumerRows)),
              static_cast<int>(F32PieceRows::first(work.k_begin, work.sequence, Config::kBlockN))};
    } else {
      return {work.sequence * heads_q + work.head, work.sequence * heads_k + head_k, 0, 0};
    }
  }
};

// Loads q, k and v. Its positions in the rings of buffers continue from one query tile to the next.
template <class Config>
struct F32Producer {
  using Shape = Sm90F32Shape<Config>;
  Sm90F32Storage<Config>& smem;
  const Sm90F32ForwardArgs& args;
  RingPlace<1> q_at = {};
  RingPlace<Config::kStages> k_at = {};
  RingPlace<Config::kStages> v_at = {};
  RingPlace<kSm90WorkSlots> work_at = {};

  [[nodiscard]] static __device__ __forceinline__ bool is_loader() { return threadIdx.x % 32 == 0; }

  // Loads both pieces of a tile of rows.
  template <int kPanels>
  static __device__ __forceinline__ void load(void* to, int panel_bytes, const TensorMapArg& map, Mbarrier& full,
                                              int row, int head) {
    full.arrive_expect_bytes(kPieces * kPanels * panel_bytes);
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel) {
        tma_load_panel(smem_address(to) + (piece * kPanels + panel) * panel_bytes, map, full,
                       {panel * kPanelColumns, row, head, piece});
      }
    }
  }

  // Each load_ function waits until its buffer is free. The first wait for each buffer returns at once. It waits for
  // parity 1, and a new barrier counts as completed for parity 1.
  __device__ __forceinline__ void load_q(const F32Place<Config>& place, const Sm90Work& work) {
    smem.q_empty.wait(q_at.parity() ^ 1);
    load<Shape::kPanelsQk>(smem.q, Shape::kPanelBytesQ, args.q_map, smem.q_full, place.first_q + work.row,
                           place.head_q);
    q_at.advance();
  }
  __device__ __forceinline__ void load_k(const F32Place<Config>& place, int n) {
    smem.k_empty[k_at.buffer()].wait(k_at.parity() ^ 1);
    load<Shape::kPanelsQk>(smem.k[k_at.buffer()], Shape::kPanelBytesK, args.k_map, smem.k_full[k_at.buffer()],
                           place.first_k + n * Config::kBlockN, place.head_k);
    k_at.advance();
  }
  __device__ __forceinline__ void load_v(const F32Place<Config>& place, int n) {
    smem.v_empty[v_at.buffer()].wait(v_at.parity() ^ 1);
    load<Shape::kPanelsV>(smem.v[v_at.buffer()], Shape::kPanelBytesK, args.v_map, smem.v_full[v_at.buffer()],
                          place.first_k + n * Config::kBlockN, place.head_k);
    v_at.advance();
  }

  // Loads q, k and v of a query tile in the order in which consumers read them: v of a key tile follows k of the next
  // key tile.
  __device__ __forceinline__ void load_tile(const Sm90Work& work) {
    const Sm90KeyList<Config> list = sm90_key_list<Config>(args, work);
    const Sm90KeyTiles tiles =
        places_of_rows<Config, Shape::kBlockM>(list, sm90_mask<Config>(args.options, work), work, work.row);
    if (tiles.begin >= tiles.end)
      return;  // no key is visible, so nothing is loaded, and consumers do not wait for q,
               // k or v
    const F32Place<Config> place = F32Place<Config>::of(args, work);
    int number = list.number(tiles.end - 1);
    load_k(place, number);
    load_q(place, work);
#pragma unroll 1
    for (int at = tiles.end - 2; at >= tiles.begin; --at) {
      const int next = list.number(at);
      load_k(place, next);
      load_v(place, number);
      number = next;
    }
    load_v(place, number);
  }

  [[nodiscard]] __device__ __forceinline__ bool is_wide(const Sm90Work& work) const {
    const int head_k = work.head / static_cast<int>(args.base.num_heads_q / args.base.num_heads_k);
    return __ldg(args.pieces.wide + work.sequence * static_cast<int>(args.base.num_heads_k) + head_k) != 0;
  }

  // Runs the loading warp. All its lanes must call this.
  __device__ __forceinline__ void run() {
    Sm90TileWalk<Config> walk(args);
    for (;;) {
      const Sm90Work work = walk.tile();
      const bool is_end = work.sequence == Sm90Work::kNoWork;
      if (!is_end) walk.take();  // the latency of the request overlaps with the loads of this tile
      if (is_end || !is_wide(work)) {
        // Wait until all warps have left the tile that used this slot before.
        smem.work_empty[work_at.buffer()].wait(work_at.parity() ^ 1);
        if (is_loader()) {
          smem.work[work_at.buffer()] = work;
          smem.work_full[work_at.buffer()].arrive();
        }
        work_at.advance();
        if (is_end) return;
        if (is_loader()) load_tile(work);
      }
      __syncwarp();
      walk.advance();
    }
  }
};

}  // namespace attend
