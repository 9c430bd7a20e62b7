// Computes the gradient of a 16-bit bias. sm90_backward_wide_queries.cuh computes it together with dq. ds of each tile
// is stored directly. If sequences share the bias, ds is first summed over these sequences.
//
//   dterms = ds, summed over the batch if the bias has batch 1
//
// Work If sequences share the bias, the thread blocks of a cluster process the same query rows of the same head, each
//          in a different sequence. They iterate over the same key tiles. A chunk is 8 adjacent keys of a tile. Each
//          chunk is summed by one block of the cluster, and the other blocks send it their float ds of this chunk. The
//          additions follow the order of the sequences, not the order of arrival, and each sum is rounded once. So the
//          same inputs give the same bits. The sum of a tile is computed while the products of the next tile run. Zeros
//          Tiles in which no row of the warpgroup sees a key are stored as zeros.
#pragma once

#include "../attention/terms.cuh"
#include "../isa/cluster.cuh"
#include "sm90_backward_store.cuh"
#include "sm90_backward_units.cuh"
#include "sm90_backward_wide_storage.cuh"

namespace attend {

// Gradient of the bias in one computing warpgroup. For each tile, the caller uses begin(), then put() for each chunk,
// then store(). store() must precede the next begin().
template <class Config, int kBlocks = Config::kDtermsBlocks>
class BackwardDterms {
 public:
  using Storage = Sm90BackwardWideQueriesStorage<Config>;
  using Element = DtermsElementOf<Config>;
  static_assert(sizeof(typename Element::Storage) == sizeof(Bits16));

  __device__ __forceinline__ BackwardDterms(Storage& smem, const Sm90BackwardArgs& args, int warpgroup)
      : smem_(smem), args_(args), warpgroup_(warpgroup) {}

  __device__ __forceinline__ void begin(uint32 number) {
    if constexpr (kIsShared) {
      const uint32 buffer = number % kBuffers;
      if (thread() == 0) smem_.ds_full[buffer][warpgroup_].arrive_expect_bytes(kBytesOfChunk * num_chunks());
      // Wait until all blocks have read the sums of the previous tile from this buffer. Afterwards the buffer may be
      // overwritten.
      smem_.ds_empty[buffer][warpgroup_].wait(number / kBuffers % 2 ^ 1);
      to_ = smem_address(&smem_.ds[buffer][warpgroup_][0][rank()][thread()]);
      full_ = smem_address(&smem_.ds_full[buffer][warpgroup_]);
    }
  }

  // Packs one chunk of ds, or sends it to the block that sums it. `ds` holds entries 4 chunk to 4 chunk + 3 of the
  // accumulator. These are two columns of two rows.
  __device__ __forceinline__ void put(uint32 number, int chunk, float4 ds) {
    if constexpr (kIsShared) {
      const int owner = chunk * kBlocks / kBackwardDtermsChunks;
      const int slot = chunk - backward_dterms_chunk(owner, kBlocks);
      if (owner == rank()) {
        if constexpr (kHoldsSums) {
          held_[slot] = ds;
        } else {  // only this thread reads the value again
          smem_.ds[number % kBuffers][warpgroup_][slot][owner][thread()] = ds;
        }
      } else {
        store_to_cluster(cluster_address(to_, owner) + slot * kBlocks * kBackwardDtermsChunkBytes, ds,
                         cluster_address(full_, owner));
      }
    } else {
      pack(chunk, ds);
    }
  }

  // Stores the gradient of the tile, or this block's share of it.
  __device__ __forceinline__ void store(uint32 number) {
    int first = 0, chunks = kBackwardDtermsChunks;
    if constexpr (kIsShared) {
      first = backward_dterms_chunk(rank(), kBlocks);
      chunks = num_chunks();
      add_up(number, chunks);
    }
    const BackwardRowBlock& block = smem_.block;
    const int key = (block.rows.tile + static_cast<int>(number)) * Config::kBlockN;
    const int first_key = key + first * kPieceElements;
    store_chunks(first_key, chunks, static_cast<int>(block.span.seqlen_k) - first_key);
  }

  // Stores zeros in the key tiles over which the block does not iterate. The block iterates over `computed` tiles.
  __device__ __forceinline__ void store_zeros(uint32 computed) const {
    const BackwardRowBlock& block = smem_.block;
    const auto tiles = static_cast<int>(num_tiles(block.span.seqlen_k, Config::kBlockN));
    const int begin = block.rows.tile, end = begin + static_cast<int>(computed);
#pragma unroll 1
    for (int tile = kIsShared ? rank() : 0; tile < tiles; tile += kIsShared ? kBlocks : 1) {
      if (tile < begin || tile >= end) store_zero_tile(tile * Config::kBlockN);
    }
  }

 private:
  static constexpr bool kIsShared = kBlocks > 1;
  static constexpr int kBuffers = kIsShared ? Storage::kBuffersDs : 1;
  static constexpr int kChunks = kIsShared ? backward_dterms_chunks(kBlocks) : kBackwardDtermsChunks;
  // With a head dimension up to 128, registers can hold this block's ds of the chunks that it sums.
  static constexpr bool kHoldsSums = kIsShared && BackwardShape<Config>::kDepth <= 128;
  // Bytes of a chunk that arrive from the other blocks.
  static constexpr int kBytesOfChunk = (kBlocks - 1) * kBackwardDtermsChunkBytes;
  static constexpr int kRowsOfWarp = 16;

  // Arrives at this barrier in each block of the cluster. All lanes of a warp must call it.
  static __device__ __forceinline__ void arrive_everywhere(Mbarrier& barrier) {
    __syncwarp();
#pragma unroll
    for (uint32 i = threadIdx.x % 32; i < kBlocks * kLanesThatArrive; i += 32) {
      arrive_in_cluster(barrier, i / kLanesThatArrive);
    }
  }

  __device__ __forceinline__ void add_up(uint32 number, int chunks) {
    const uint32 buffer = number % kBuffers;
    smem_.ds_full[buffer][warpgroup_].wait(number / kBuffers % 2);  // wait until ds of the other sequences has arrived
    const auto& parts = smem_.ds[buffer][warpgroup_];
#pragma unroll
    for (int slot = 0; slot < kChunks; ++slot) {
      if (kBackwardDtermsChunks % kBlocks != 0 && slot >= chunks) continue;
      float4 sum = part(parts[slot], slot, 0);
#pragma unroll
      for (int b = 1; b < kBlocks; ++b) {
        const float4 x = part(parts[slot], slot, b);
        sum = make_float4(sum.x + x.x, sum.y + x.y, sum.z + x.z, sum.w + x.w);
      }
      pack(slot, sum);
    }
    arrive_everywhere(smem_.ds_empty[buffer][warpgroup_]);
  }

  // Returns the ds that block b computed. If b is this block, its ds may be in registers.
  [[nodiscard]] __device__ __forceinline__ float4 part(const float4 (&of_blocks)[kBlocks][kWarpgroup], int slot,
                                                       int b) const {
    return kHoldsSums && b == rank() ? held_[slot] : of_blocks[b][thread()];
  }

  __device__ __forceinline__ void pack(int slot, float4 ds) {
    constexpr int kBits = sm90_backward_units(Config::kElement).ds_bits;
    float unit = sm90_backward_unit(kBits);
    if constexpr (Score<Config>::kDrops) unit *= kept_scale<Config>(args_.options);
    pairs_[2 * slot] = Element::pack(ds.x * unit, ds.y * unit);
    pairs_[2 * slot + 1] = Element::pack(ds.z * unit, ds.w * unit);
  }

  // `key` is the first key of the chunks, and keys_left is the number of keys that exist from there on.
  __device__ __forceinline__ void store_chunks(int key, int chunks, int keys_left) {
    const int lane = thread() % 32;
    const int rows_left = static_cast<int>(smem_.block.span.seqlen_q) - first_row();
    Bits16* const to = row_of(first_row()) + key;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = lane / 4 + 8 * h;
      Bits16* const to_row = to + row * args_.dterms_stride.row;
      if constexpr (kChunks % 4 == 0) {
#pragma unroll
        for (int c = 0; c < kChunks; c += 4) {
          uint32 r[4];
#pragma unroll
          for (int j = 0; j < 4; ++j) r[j] = pairs_[2 * (c + j) + h];
          transpose_quad(r);
          if (row < rows_left) store_keys(to_row, (c + lane % 4) * kPieceElements, keys_left, r);
        }
      } else {
#pragma unroll
        for (int c = 0; c < kChunks; ++c) {
          if (c < chunks && row < rows_left) {
            store_pair(to_row, c * kPieceElements + lane % 4 * 2, keys_left, pairs_[2 * c + h]);
          }
        }
      }
    }
  }
  static __device__ __forceinline__ void store_keys(Bits16* row, int at, int keys_left, const uint32 (&pair)[4]) {
    if (at + kPieceElements <= keys_left) {
      *reinterpret_cast<uint4*>(row + at) = {pair[0], pair[1], pair[2], pair[3]};
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) store_pair(row, at + 2 * i, keys_left, pair[i]);
    }
  }
  static __device__ __forceinline__ void store_pair(Bits16* row, int at, int keys_left, uint32 pair) {
    if (at + 2 <= keys_left) {
      *reinterpret_cast<uint32*>(row + at) = pair;
    } else if (at < keys_left) {
      row[at] = static_cast<Bits16>(pair);
    }
  }

  // Stores a tile of zeros. Eight threads store one row.
  __device__ __forceinline__ void store_zero_tile(int key) const {
    constexpr int kThreadsOfRow = Config::kBlockN / kPieceElements;
    const int at = thread() % kThreadsOfRow * kPieceElements;
    const uint32 zeros[4] = {};
#pragma unroll 1
    for (int i = thread() / kThreadsOfRow; i < kBackwardRows; i += kWarpgroup / kThreadsOfRow) {
      const int row = smem_.block.rows.row + warpgroup_ * kBackwardRows + i;
      if (row >= smem_.block.span.seqlen_q) break;
      store_keys(row_of(row) + key, at, static_cast<int>(smem_.block.span.seqlen_k) - key, zeros);
    }
  }

  [[nodiscard]] __device__ __forceinline__ Bits16* row_of(int row) const {
    const uint32 batch = kIsShared ? 0 : smem_.block.span.batch;
    return static_cast<Bits16*>(args_.dterms) + args_.dterms_stride.offset(batch, smem_.block.head, row);
  }
  // Returns the warp's first row, as an index in the sequence.
  [[nodiscard]] __device__ __forceinline__ int first_row() const {
    return smem_.block.rows.row + warpgroup_ * kBackwardRows + thread() / 32 * kRowsOfWarp;
  }
  // Returns the index of the thread in its warpgroup. It is recomputed at each use, so that it occupies no register
  // between uses.
  [[nodiscard]] static __device__ __forceinline__ int thread() {
    return recomputed_thread() % kWarpgroup;
  }
  [[nodiscard]] static __device__ __forceinline__ int rank() {
    return static_cast<int>(blockIdx.x % kBlocks);
  }

  // Returns the number of chunks that this block sums.
  [[nodiscard]] static __device__ __forceinline__ int num_chunks() {
    return backward_dterms_chunk(rank() + 1, kBlocks) - backward_dterms_chunk(rank(), kBlocks);
  }

  Storage& smem_;
  const Sm90BackwardArgs& args_;
  const int warpgroup_;
  uint32 to_, full_;                       // set by begin(): address to which this thread writes ds, and address of the
                                           // barrier ds_full
  float4 held_[kHoldsSums ? kChunks : 1];  // this block's ds of the chunks that it sums
  uint32 pairs_[2 * kChunks];              // pairs of 16-bit values of the tile that is stored next
};

// Used if the gradient of the bias is not requested.
template <class Config>
class BackwardDterms<Config, 0> {
 public:
  __device__ __forceinline__ BackwardDterms(Sm90BackwardWideQueriesStorage<Config>&, const Sm90BackwardArgs&, int) {}
};

}  // namespace attend
