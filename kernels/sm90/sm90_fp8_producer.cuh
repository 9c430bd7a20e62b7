// The loading warp of sm90_fp8_forward. One of its lanes issues the copies.
#pragma once

#include "../isa/wgmma.cuh"
#include "../tiles/tma_panel.cuh"
#include "sm90_fp8_args.cuh"
#include "sm90_fp8_storage.cuh"
#include "sm90_work.cuh"

namespace attend {

// Loads q, k and the transposed v. Its positions in the rings of buffers continue from one query tile to the next.
template <class Config>
struct Fp8Producer {
  using Shape = Sm90Fp8Shape<Config>;
  Sm90Fp8Storage<Config>& smem;
  const Sm90Fp8ForwardArgs& args;
  RingPlace<1> q_at = {};
  RingPlace<Config::kStages> k_at = {};
  RingPlace<Config::kStages> v_at = {};
  RingPlace<kSm90WorkSlots> work_at = {};

  [[nodiscard]] static __device__ __forceinline__ bool is_loader() { return threadIdx.x % 32 == 0; }

  static __device__ __forceinline__ void load(void* to, int bytes, const TensorMapArg& map, Mbarrier& full,
                                              const PanelPlace& at) {
    full.arrive_expect_bytes(bytes);
    tma_load_panel(smem_address(to), map, full, at);
  }

  // Each load_ function waits until its buffer is free. The first wait for each buffer returns at once. It waits for
  // parity 1, and a new barrier counts as completed for parity 1.
  __device__ __forceinline__ void load_q(const Sm90Work& work, const SequenceSpan& span) {
    if (is_loader()) {
      smem.q_empty.wait(q_at.parity() ^ 1);
      load(smem.q, Shape::kQBytes, args.q_map, smem.q_full, PanelPlace::of(span.query_place(work.row), work.head));
    }
    q_at.advance();
  }
  __device__ __forceinline__ void load_k(const KeySource& keys, int n, int head) {
    if (is_loader()) {
      smem.k_empty[k_at.buffer()].wait(k_at.parity() ^ 1);
      load(smem.k[k_at.buffer()], Shape::kKBytes, args.k_map, smem.k_full[k_at.buffer()],
           PanelPlace::of(keys.place(n * Config::kBlockN), head));
    }
    k_at.advance();
  }
  __device__ __forceinline__ void load_v(int tile, int head) {
    if (is_loader()) {
      smem.v_empty[v_at.buffer()].wait(v_at.parity() ^ 1);
      load(smem.v[v_at.buffer()].v, Shape::kVBytes, args.v_map, smem.v_full[v_at.buffer()],
           {0, tile * Config::kHeadDimV, head, 0});
    }
    v_at.advance();
  }

  // Loads q, k and v of a query tile in the order in which consumers read them: v of a key tile follows k of the next
  // key tile. Requests the next query tile before it loads the last v.
  __device__ __forceinline__ void load_tile(const Sm90Work& work, Sm90TileWalk<Config>& walk) {
    const Sm90KeyTiles tiles =
        key_tiles_of_rows<Config, Shape::kBlockM>(sm90_mask<Config>(args.options, work), work, work.row);
    // No key is visible, so nothing is loaded, and consumers do not wait for q, k or v.
    if (tiles.begin >= tiles.end) return walk.take();
    const int heads_k = static_cast<int>(args.base.num_heads_k);
    const int head = work.head / (static_cast<int>(args.base.num_heads_q) / heads_k);
    const SequenceSpan span = work.template span<Config>();
    const KeySource keys = span.keys();
    const int head_of_v = static_cast<int>(span.batch) * heads_k + head;
    const int tile_of_v =
        Config::kIsVarlen
            ? static_cast<int>(F32PieceRows::first(work.k_begin, work.sequence, Config::kBlockN) / Config::kBlockN)
            : 0;
    load_k(keys, tiles.end - 1, head);
    load_q(work, span);
#pragma unroll 1
    for (int n = tiles.end - 1; n > tiles.begin; --n) {
      load_k(keys, n - 1, head);
      load_v(tile_of_v + n, head_of_v);
    }
    walk.take();
    load_v(tile_of_v + tiles.begin, head_of_v);
  }

  // Runs the loading warp. All its lanes must call this.
  __device__ __forceinline__ void run() {
    Sm90TileWalk<Config> walk(args);
    for (;;) {
      const Sm90Work work = walk.tile();
      // Wait until all warps have left the tile that used this slot before.
      smem.work_empty[work_at.buffer()].wait(work_at.parity() ^ 1);
      if (is_loader()) {
        smem.work[work_at.buffer()] = work;
        smem.work_full[work_at.buffer()].arrive();
      }
      work_at.advance();
      if (work.sequence == Sm90Work::kNoWork) return;
      load_tile(work, walk);
      __syncwarp();
      walk.advance();
    }
  }
};

}  // namespace attend
