// Loads tiles of keys and values from a cache (Config::kIsCached). A page is a block of the cache. Each loading warp
// looks up the pages of its rows one tile ahead, and then issues the copies. A warp needs about 60 clocks to issue a
// copy, so small pages need several loading warps.
//
// The Config selects one of three modes. If kKeyLoaders is 1, each tile lies in one page or in no page, and TMA loads
// the tile as one box. Otherwise each loading warp has 32 rows. If kHasBoxes is set, TMA loads these rows in boxes, and
// each box lies in one page. If kHasBoxes is not set, the warp copies its rows one by one with cp.async.
//
// A key is hidden if it lies before the first key of the sequence (cache_leftpad) or in a page that does not exist.
// Consumers set the scores of hidden keys to -inf. The loader sets the values of hidden keys, and of keys beyond the
// sequence, to zero. This is necessary because 0 * NaN is NaN, even though p is 0 there.
#pragma once

#include "../isa/cp_async.cuh"
#include "../isa/wgmma.cuh"
#include "../serving/cache.cuh"
#include "../tiles/tma_panel.cuh"
#include "sm90_cached_args.cuh"
#include "sm90_work.cuh"

namespace attend {

// The keys of one sequence that its query rows may see.
struct Sm90CachedKeys {
  int64 cache_row;
  int first_key;
  int begin_key, end_key;  // range of keys that at least one query row may see

  template <class Config>
  [[nodiscard]] static __device__ __forceinline__ Sm90CachedKeys of(const Sm90CachedArgs& args, const Sm90Work& work) {
    const KeyRange seen = sm90_mask<Config>(args.options, work).rows(0, work.seqlen_q);
    const int begin = max(static_cast<int>(seen.begin), work.k_begin);
    return {cached(args.cache, work.sequence).cache_row, work.k_begin, begin, max(begin, static_cast<int>(seen.end))};
  }
};

// Location of the row of a key tile that this lane loads. If the lane loads several rows, this is the first one.
struct Sm90CachedRow {
  int key;
  int block;    // index of the page; -1 if the key has no page, or if no query row may see a key of its box
  int row;      // row in the page; if kKeyLoaders == 1, the row of the tile's first key
  bool exists;  // the key exists, and some query row may see it
};

// One warp of the loading warpgroup. Its positions in the rings of k and v continue from one query tile to the next.
template <class Config>
struct Sm90CachedLoader {
  using Shape = Sm90Shape<Config>;
  Sm90Storage<Config>& smem;
  const Sm90CachedArgs& args;
  int warp;
  RingPlace<Config::kStages> k_at = {};
  RingPlace<Config::kStages> v_at = {};
  uint32 tails = 0;  // number of tiles of v in which this warp has cleared rows

  // Loads k and v of all key tiles that the query rows see, in the order in which consumers read them. Calls load_q
  // after the first k is loaded.
  template <class LoadQ>
  __device__ __forceinline__ void load(const Sm90Work& work, const LoadQ& load_q) {
    const Sm90KeyTiles tiles =
        key_tiles_of_rows<Config, Shape::kBlockM>(sm90_mask<Config>(args.options, work), work, work.row);
    if (tiles.begin >= tiles.end)
      return;  // no key is visible, so nothing is loaded, and consumers do not wait for q,
               // k or v
    const int head = work.head / static_cast<int>(args.base.num_heads_q / args.base.num_heads_k);
    const Sm90CachedKeys keys = Sm90CachedKeys::of<Config>(args, work);
    int n = tiles.end - 1;
    Sm90CachedRow row = find(keys, n), next = find(keys, n - 1);
    load_k(keys, row, head);
    load_q();
#pragma unroll 1
    for (--n; n >= tiles.begin; --n) {
      const Sm90CachedRow behind = find(keys, n - 1);  // looked up before the warp waits for free buffers, so that the
                                                       // latencies overlap
      load_k(keys, next, head);
      load_v(keys, row, head);
      row = next;
      next = behind;
    }
    load_v(keys, row, head);
  }

 private:
  static constexpr int kRowChunks = kSwizzleBytes / kChunkBytes;  // 16-byte chunks in one row of a panel
  static constexpr int kElementsOfChunk = kPanelColumns / kRowChunks;
  static constexpr int kRowsAtOnce = kWarpThreads / kRowChunks, kRowsOfLoop = kWarpThreads / kRowsAtOnce;

  [[nodiscard]] static __device__ __forceinline__ int lane() {
    return static_cast<int>(threadIdx.x) % kWarpThreads;
  }
  [[nodiscard]] __device__ __forceinline__ int in_tile() const {
    return warp * kWarpThreads + lane();
  }
  // Number of rows that this warp loads, and number of rows of one box.
  static constexpr int kRows = Config::kKeyLoaders == 1 ? Config::kBlockN : kWarpThreads;
  [[nodiscard]] __device__ __forceinline__ int box_rows() const {
    return Config::kKeyLoaders == 1 ? Config::kBlockN : Config::kHasBoxes ? 1 << args.box_shift : 1;
  }

  // Returns the location of the lane's row in key tile n. Skips the page lookup if no query row may see a key of the
  // row's box.
  [[nodiscard]] __device__ __forceinline__ Sm90CachedRow find(const Sm90CachedKeys& keys, int n) const {
    const int key = n * Config::kBlockN + in_tile(), box = box_rows();
    const int first = Config::kKeyLoaders == 1 ? n * Config::kBlockN : key & -box;
    Sm90CachedRow found = {key, -1, 0, false};
    if (n < 0 || in_tile() >= Config::kBlockN || first >= keys.end_key || first + box <= keys.begin_key) return found;
    const CachePlace at = place(args.cache, keys.cache_row, Config::kKeyLoaders == 1 ? first : key);
    found.block = static_cast<int>(at.block);
    found.row = static_cast<int>(at.row);
    found.exists = at.exists() && key >= keys.begin_key && key < keys.end_key;
    return found;
  }

  // load_k() and load_v() load this warp's rows of one tile of k or v. load_k() also writes the bits of hidden rows.
  __device__ __forceinline__ void load_k(const Sm90CachedKeys& keys, const Sm90CachedRow& row, int head) {
    Mbarrier& full = smem.k_full[k_at.buffer()];
    wait_for(smem.k_empty[k_at.buffer()], k_at.parity() ^ 1);
    hide(keys, row);
    if constexpr (Config::kHasBoxes) {
      ask_for_boxes<Shape::kPanelsQk>(smem.k[k_at.buffer()], args.k_map, full, row, head);
    } else {
      ask_for_rows<Config::kHeadDim>(smem.k[k_at.buffer()], args.base.k, args.base.k_stride, full, row, head);
    }
    k_at.advance();
  }
  __device__ __forceinline__ void load_v(const Sm90CachedKeys& keys, const Sm90CachedRow& row, int head) {
    unsigned char* v = smem.v[v_at.buffer()];
    Mbarrier& full = smem.v_full[v_at.buffer()];
    wait_for(smem.v_empty[v_at.buffer()], v_at.parity() ^ 1);
    if constexpr (Config::kHasBoxes) {
      const bool clears = __any_sync(kAllLanes, has_empty_rows(keys, row));
      ask_for_boxes<Shape::kPanelsV>(v, args.v_map, clears ? smem.v_tail[warp] : full, row, head);
      if (clears) clear_rows(keys, row, v, full);
    } else {
      ask_for_rows<Config::kHeadDimV>(v, args.base.v, args.base.v_stride, full, row, head);
    }
    v_at.advance();
  }

  // Writes one bit for each row of this warp: 1 if the key is hidden. Consumers read these bits together with the tile.
  __device__ __forceinline__ void hide(const Sm90CachedKeys& keys, const Sm90CachedRow& row) const {
    auto& word = smem.hidden.of_tile[k_at.count % smem.hidden.kTiles].word;
#pragma unroll
    for (int further = 0; further < kRows; further += kWarpThreads) {
      const int key = row.key + further;
      const bool is_missing = row.block < 0 && key >= keys.begin_key && key < keys.end_key;
      const uint32 hidden = __ballot_sync(kAllLanes, key < keys.first_key || is_missing);
      if (lane() == 0) word[warp + further / kWarpThreads] = hidden;
    }
  }
  static __device__ __forceinline__ void wait_for(Mbarrier& empty, uint32 parity) {
    if (lane() == 0) empty.wait(parity);
    __syncwarp();  // the buffer is free, so all lanes may load rows into it
  }

  // Issues TMA copies of this warp's boxes that lie in a page. The barrier `full` is set to expect their bytes.
  template <int kPanels>
  __device__ __forceinline__ void ask_for_boxes(unsigned char* to, const TensorMapArg& map, Mbarrier& full,
                                                const Sm90CachedRow& row, int head) const {
    const uint32 box_bytes = static_cast<uint32>(kSwizzleBytes * box_rows());
    const bool is_first = Config::kKeyLoaders == 1 ? lane() == 0 : (lane() & (box_rows() - 1)) == 0;
    const bool begins_box = is_first && row.block >= 0 && in_tile() < Config::kBlockN;
    const uint32 boxes = static_cast<uint32>(__popc(static_cast<int>(__ballot_sync(kAllLanes, begins_box))));
    if (lane() == 0) full.arrive_expect_bytes(kPanels * boxes * box_bytes);
    __syncwarp();  // `full` expects the bytes, so the copies may be issued
    if (!begins_box) return;
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      tma_load_panel(smem_address(to) + panel * Shape::kPanelBytesK + in_tile() * kSwizzleBytes, map, full,
                     {panel * kPanelColumns, row.row, head, row.block});
    }
  }

  // Calls visit(row of the tile) for each of the lane's rows of v that no query row may see.
  template <class Visit>
  __device__ __forceinline__ void for_each_empty_row(const Sm90CachedKeys& keys, const Sm90CachedRow& row,
                                                     const Visit& visit) const {
#pragma unroll
    for (int further = 0; further < kRows; further += kWarpThreads) {
      const int key = row.key + further;
      const bool exists = row.block >= 0 && key >= keys.begin_key && key < keys.end_key;
      if (in_tile() + further < Config::kBlockN && !exists) visit(in_tile() + further);
    }
  }
  [[nodiscard]] __device__ __forceinline__ bool has_empty_rows(const Sm90CachedKeys& keys,
                                                               const Sm90CachedRow& row) const {
    bool has = false;
    for_each_empty_row(keys, row, [&](int) { has = true; });
    return has;
  }
  // Sets the rows of v that no query row may see to zero. The barrier `v_tail` completes when TMA has written this
  // warp's boxes.
  __device__ __forceinline__ void clear_rows(const Sm90CachedKeys& keys, const Sm90CachedRow& row, unsigned char* v,
                                             Mbarrier& full) {
    smem.v_tail[warp].wait(tails++ % 2);  // wait until the boxes have arrived, so that TMA does not overwrite the zeros
    for_each_empty_row(keys, row, [&](int empty) {
      // Zeros need no swizzle, because all chunks are equal.
      uint4* const to = reinterpret_cast<uint4*>(v + empty * kSwizzleBytes);
#pragma unroll
      for (int panel = 0; panel < Shape::kPanelsV; ++panel) {
#pragma unroll 1
        for (int chunk = 0; chunk < kSwizzleBytes / kChunkBytes; ++chunk) {
          to[panel * (Shape::kPanelBytesK / kChunkBytes) + chunk] = make_uint4(0, 0, 0, 0);
        }
      }
    });
    fence_smem_for_async();
    __syncwarp();  // all zeros are written and visible to the tensor cores, so `full` may complete
    if (lane() == 0) full.arrive();
  }

  // Calls visit(row of the warp, byte offset of the lane's chunk in the panel) for the rows that this lane copies. Each
  // lane copies one of the eight 16-byte chunks of every fourth row.
  template <int kUnroll, class Visit>
  __device__ __forceinline__ void for_each_row(const Visit& visit) const {
#pragma unroll kUnroll
    for (int first = 0; first < kWarpThreads; first += kRowsAtOnce) {
      const int at = first + lane() / kRowChunks, in_tile = warp * kWarpThreads + at;
      // The 128-byte swizzle permutes the chunks of a row.
      const int chunk = lane() % kRowChunks ^ at % kRowChunks;
      if (Config::kBlockN % kWarpThreads != 0 && warp * kWarpThreads + first >= Config::kBlockN) return;
      visit(at, static_cast<uint32>(in_tile * kSwizzleBytes + chunk * kChunkBytes));
    }
  }

  // Issues cp.async copies of this warp's rows. Rows that do not exist and columns beyond kColumns become zero. The
  // barrier `full` completes when the rows have arrived. Consumers then issue a fence, so that the tensor cores see the
  // rows (Sm90Consumer::wait_for).
  template <int kColumns>
  __device__ __forceinline__ void ask_for_rows(unsigned char* to, const void* tensor, const TensorStrides& stride,
                                               Mbarrier& full, const Sm90CachedRow& row, int head) const {
    const int64 offset = row.exists ? stride.offset(row.block, head, row.row) : -1;
    const uint64 chunks = static_cast<uint64>(offset) / kElementsOfChunk;
    const uint32 near = static_cast<uint32>(chunks);
    // If all rows exist and lie within 64 GB of the tensor's start, a chunk number fits into 32 bits. One 32-bit
    // shuffle then broadcasts the position of a row.
    if (kColumns % kPanelColumns == 0 && __all_sync(kAllLanes, offset >= 0 && chunks == near)) {
      for_each_row<sm90_panels(kColumns) <= 2 ? kRowsOfLoop : 2>([&](int at, uint32 place) {
        const uint64 chunk = __shfl_sync(kAllLanes, near, at) + lane() % kRowChunks;
#pragma unroll
        for (int panel = 0; panel < sm90_panels(kColumns); ++panel) {
          cp_async_16(smem_address(to) + place + panel * Shape::kPanelBytesK,
                      static_cast<const uint4*>(tensor) + chunk + panel * kRowChunks);
        }
      });
    } else {
      for_each_row<1>([&](int at, uint32 place) {
        const int64 of_row = __shfl_sync(kAllLanes, offset, at);
#pragma unroll
        for (int panel = 0; panel < sm90_panels(kColumns); ++panel) {
          const int column = panel * kPanelColumns + lane() % kRowChunks * kElementsOfChunk;
          const bool exists = of_row >= 0 && column < kColumns;
          cp_async_16(smem_address(to) + place + panel * Shape::kPanelBytesK,
                      static_cast<const Bits16*>(tensor) + (exists ? of_row + column : 0), exists);
        }
      });
    }
    cp_async_arrive(full);
    __syncwarp();  // all lanes have issued their plain writes to shared memory
    arrive_as_warp(full);
  }
};

// A loading warp other than the first. The first warp also chooses the query tiles and writes them to shared memory
// (sm90_producer.cuh).
template <class Config>
struct Sm90CachedHelper {
  Sm90Storage<Config>& smem;
  const Sm90CachedArgs& args;

  __device__ __forceinline__ void run(int warp) {
    Sm90CachedLoader<Config> loader = {smem, args, warp};
    RingPlace<kSm90WorkSlots> work_at;
    for (;;) {
      // Wait until the first warp has written the next query tile.
      smem.work_full[work_at.buffer()].wait(work_at.parity());
      const Sm90Work work = smem.work[work_at.buffer()];
      __syncwarp();  // all lanes have read the query tile, so it may be overwritten
      arrive_as_warp(smem.work_empty[work_at.buffer()]);
      if (work.sequence == Sm90Work::kNoWork) return;
      loader.load(work, [] {});
      work_at.advance();
    }
  }
};

}  // namespace attend
