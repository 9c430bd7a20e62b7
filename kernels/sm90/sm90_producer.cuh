// The warp that loads q, k and v. One lane issues the copies. The other lanes help to find packed sequences and to
// clear rows beyond the end of a sequence. If keys are in a cache, the warps of sm90_cached_loader.cuh load them.
#pragma once

#include "../attention/terms.cuh"
#include "../isa/grid_dependency.cuh"
#include "../isa/wgmma.cuh"
#include "../tiles/tma_panel.cuh"
#include "sm90_cached_loader.cuh"

namespace attend {

// Loads q, k and v. Its positions in the rings of buffers continue from one query tile to the next.
template <class Config>
struct Sm90Producer {
  using Shape = Sm90Shape<Config>;
  Sm90Storage<Config>& smem;
  const Sm90ForwardArgs& args;
  RingPlace<Config::kQBuffers> q_at = {};
  RingPlace<Config::kStages> k_at = {};
  RingPlace<Config::kStages> v_at = {};
  RingPlace<kSm90WorkSlots> work_at = {};
  uint32 tails = 0;  // number of tiles of v whose last rows were cleared

  [[nodiscard]] static __device__ __forceinline__ bool is_loader() { return threadIdx.x % 32 == 0; }

  template <int kPanels>
  static __device__ __forceinline__ void load(unsigned char* to, int panel_bytes, int bytes, const TensorMapArg& map,
                                              Mbarrier& full, const RowPlace& at, int head) {
    full.arrive_expect_bytes(bytes);
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      tma_load_panel(smem_address(to) + panel * panel_bytes, map, full,
                     PanelPlace::of(at, head, panel * kPanelColumns));
    }
  }

  // Each load_ function waits until its buffer is free. The first wait for each buffer returns at once. It waits for
  // parity 1, and a new barrier counts as completed for parity 1.
  __device__ __forceinline__ void load_q(const Sm90Work& work, const SequenceSpan& span) {
    if (is_loader()) {
      smem.q_empty[q_at.buffer()].wait(q_at.parity() ^ 1);
      load<Shape::kPanelsQk>(smem.q[q_at.buffer()], Shape::kPanelBytesQ, Shape::kPanelsQk * Shape::kPanelBytesQ,
                             args.q_map, smem.q_full[q_at.buffer()], span.query_place(work.row), work.head);
    }
    q_at.advance();
  }
  __device__ __forceinline__ void load_k(const Sm90Work& work, const KeySource& keys, int n, int head) {
    if (is_loader()) {
      smem.k_empty[k_at.buffer()].wait(k_at.parity() ^ 1);
      load<Shape::kPanelsQk>(smem.k[k_at.buffer()], Shape::kPanelBytesK, Shape::kKBytes, args.k_map,
                             smem.k_full[k_at.buffer()], keys.place(n * Config::kBlockN), head);
      if constexpr (Config::kTermsTiles) load_terms(work, n);
    }
    k_at.advance();
  }
  // Loads the bias of the key tile. The barrier of k also waits for the bias.
  __device__ __forceinline__ void load_terms(const Sm90Work& work, int n) {
    const TensorStrides& stride = terms_stride(args.options);
    smem.k_full[k_at.buffer()].arrive_expect_bytes(Shape::kTermsBytes);
#pragma unroll
    for (int column = 0; column < Config::kBlockN; column += kPanelColumns) {
      tma_load_panel(smem_address(smem.terms[k_at.buffer()]) + column / kPanelColumns * Shape::kPanelBytesQ,
                     args.terms_map, smem.k_full[k_at.buffer()],
                     {n * Config::kBlockN + column, work.row, stride.head == 0 ? 0 : work.head,
                      stride.batch == 0 ? 0 : work.sequence});
    }
  }
  __device__ __forceinline__ void load_v(const Sm90Work& work, const KeySource& keys, int n, int head) {
    const int left = work.seqlen_k - n * Config::kBlockN;
    const bool has_tail = Config::kIsVarlen && left < Config::kBlockN;
    Mbarrier& full = has_tail ? smem.v_tail[0] : smem.v_full[v_at.buffer()];
    if (is_loader()) {
      smem.v_empty[v_at.buffer()].wait(v_at.parity() ^ 1);
      load<Shape::kPanelsV>(smem.v[v_at.buffer()], Shape::kPanelBytesK, Shape::kVBytes, args.v_map, full,
                            keys.place(n * Config::kBlockN), head);
    }
    if (has_tail) clear_tail(smem.v[v_at.buffer()], left, smem.v_full[v_at.buffer()]);
    v_at.advance();
  }

  // Clears the rows of v beyond the end of a packed sequence, which belong to the next sequence. p is 0 there, but 0 *
  // NaN would be NaN.
  __device__ __forceinline__ void clear_tail(unsigned char* v, int keys, Mbarrier& full) {
    constexpr int kChunks = kSwizzleBytes / kChunkBytes;  // 16-byte chunks in one row of a panel; zeros need no swizzle
    __syncwarp();
    smem.v_tail[0].wait(tails++ % 2);  // wait until the tile has arrived, so that TMA does not overwrite the zeros
    for (int i = static_cast<int>(threadIdx.x) % 32; i < (Config::kBlockN - keys) * kChunks; i += 32) {
#pragma unroll
      for (int panel = 0; panel < Shape::kPanelsV; ++panel) {
        *reinterpret_cast<uint4*>(v + panel * Shape::kPanelBytesK + keys * kSwizzleBytes + i * kChunkBytes) =
            make_uint4(0, 0, 0, 0);
      }
    }
    fence_smem_for_async();
    __syncwarp();  // all zeros are written and visible to the tensor cores, so `full` may complete
    if (is_loader()) full.arrive();
  }

  // Loads q, k and v of a query tile in the order in which consumers read them: v of a key tile follows k of the next
  // key tile. Requests the next query tile before it loads the last v.
  __device__ __forceinline__ void load_tile(const Sm90Work& work, Sm90TileWalk<Config>& walk) {
    const Sm90KeyList<Config> list = sm90_key_list<Config>(args, work);
    const Sm90KeyTiles tiles = places_of_block<Config>(args, list, sm90_mask<Config>(args.options, work), work);
    // No key is visible, so nothing is loaded, and consumers do not wait for q, k or v.
    if (tiles.begin >= tiles.end) return walk.take();
    const int head = work.head / static_cast<int>(args.base.num_heads_q / args.base.num_heads_k);
    const SequenceSpan span = work.template span<Config>();
    const KeySource keys = span.keys();
    int number = list.number(tiles.end - 1);
    load_k(work, keys, number, head);
    load_q(work, span);
#pragma unroll 1
    for (int place = tiles.end - 2; place >= tiles.begin; --place) {
      const int next = list.number(place);
      load_k(work, keys, next, head);
      load_v(work, keys, number, head);
      number = next;
    }
    walk.take();
    load_v(work, keys, number, head);
  }

  // Runs the loading warp. All its lanes must call this.
  __device__ __forceinline__ void run() {
    if constexpr (Config::kIsCached) {
      Sm90CachedLoader<Config> loader = {smem, static_cast<const Sm90CachedArgs&>(args), 0};
      announce_tiles([&](const Sm90Work& work, Sm90TileWalk<Config>& walk) {
        walk.take();
        loader.load(work, [&] { load_q(work, work.template span<Config>()); });
      });
      leave_launch();
    } else {
      announce_tiles([&](const Sm90Work& work, Sm90TileWalk<Config>& walk) { load_tile(work, walk); });
    }
  }

  template <class LoadTile>
  __device__ __forceinline__ void announce_tiles(const LoadTile& load) {
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
      // load_tile() requests the next query tile late. An early request would claim long tiles for this block that
      // another block could start sooner. The latency of the request overlaps with the consumers' products of the
      // current tile.
      load(work, walk);
      __syncwarp();
      walk.advance();
    }
  }

  // Resets the tile counter for the next launch. The last block that calls this function resets it. This kernel may
  // have started while the previous kernel was still running, so it waits for the previous kernel before it ends. A
  // kernel that waits for this one can then rely on both being complete.
  __device__ __forceinline__ void leave_launch() {
    if (!is_loader()) return;
    const auto& cached_args = static_cast<const Sm90CachedArgs&>(args);
    if (atomicAdd(cached_args.blocks_done, 1u) == gridDim.x - 1) {
      // True for the last block, when no block requests another tile.
      *args.next_tile = 0;
      *cached_args.blocks_done = 0;
    }
    wait_for_kernels_before();
  }
};

}  // namespace attend
