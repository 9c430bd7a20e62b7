// Tiles of q, k and v that the copy engine writes to a block's shared memory, and the barriers between the copy engine
// and the warps that read the tiles. Config::kStages is the number of buffers of k, and of v.
#pragma once

#include "../../common/element.cuh"
#include "../../isa/mbarrier.cuh"
#include "../../isa/tma.cuh"
#include "../../isa/wgmma.cuh"
#include "row_tile.cuh"

namespace attend {

template <class Config>
struct alignas(kSwizzleAtom) TmaStorage {
  Bits16 q[Config::kBlockM * Config::kHeadDim];
  Bits16 k[Config::kStages][Config::kBlockN * Config::kHeadDim];
  Bits16 v[Config::kStages][Config::kBlockN * Config::kHeadDim];
  Mbarrier q_full;                   // completes when the bytes of q have arrived; q may then be read
  Mbarrier k_full[Config::kStages];  // completes when the bytes of a tile have arrived; its buffer may then be read
  Mbarrier v_full[Config::kStages];
  Mbarrier k_empty[Config::kStages];  // completes when each reading warp has arrived; the buffer may then be
                                      // overwritten
  Mbarrier v_empty[Config::kStages];

  // Initialises the barriers. One thread calls it. A barrier of the block must follow.
  __device__ __forceinline__ void init_barriers() {
    constexpr int kReaders = Config::kBlockM / kWarpgroupRows * kWarpgroup / 32;
    q_full.init(1);
    for (int stage = 0; stage < Config::kStages; ++stage) {
      k_full[stage].init(1);
      v_full[stage].init(1);
      k_empty[stage].init(kReaders);
      v_empty[stage].init(kReaders);
    }
    mbarrier_init_fence();
  }
};

// Work of the one thread that issues copies.
template <class Config>
struct TmaTileLoader {
  static constexpr uint32 kTileBytes = Config::kBlockN * Config::kHeadDim * sizeof(Bits16);
  TmaStorage<Config>& smem;
  const ForwardTmaArgs& args;
  const RowTile& tile;

  __device__ __forceinline__ void load_q() const {
    smem.q_full.arrive_expect_bytes(sizeof(smem.q));
    tma_load_tile(smem.q, args.q_map, smem.q_full, tile.row_begin, tile.head, tile.batch);
  }
  // Waits until the buffer's previous tile, n - kStages, has been released, and then starts the copy of tile n. The
  // buffer has then been released n / kStages times. In the first round the barriers are new, and a wait for parity 1
  // returns at once.
  __device__ __forceinline__ void load_k(int n) const {
    const int stage = n % Config::kStages;
    smem.k_empty[stage].wait(n / Config::kStages % 2 ^ 1);
    smem.k_full[stage].arrive_expect_bytes(kTileBytes);
    tma_load_tile(smem.k[stage], args.k_map, smem.k_full[stage], static_cast<int64>(n) * Config::kBlockN, tile.head_k,
                  tile.batch);
  }
  __device__ __forceinline__ void load_v(int n) const {
    const int stage = n % Config::kStages;
    smem.v_empty[stage].wait(n / Config::kStages % 2 ^ 1);
    smem.v_full[stage].arrive_expect_bytes(kTileBytes);
    tma_load_tile(smem.v[stage], args.v_map, smem.v_full[stage], static_cast<int64>(n) * Config::kBlockN, tile.head_k,
                  tile.batch);
  }
};

// Releases a buffer that the warp has read. The products that read it must be complete, so wgmma_wait() must come
// before.
__device__ __forceinline__ void release(Mbarrier& empty) {
  if (threadIdx.x % 32 == 0) empty.arrive();
}

}  // namespace attend
