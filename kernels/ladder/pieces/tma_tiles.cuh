// Tiles of q, k and v that the copy engine brings into a block's shared memory, and the barriers between it and the
// warps that read them. Needs Config::kStages: the buffers that k and v have each.
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
  Mbarrier q_full;                   // the bytes of q
  Mbarrier k_full[Config::kStages];  // the bytes of a tile: its buffer may be read
  Mbarrier v_full[Config::kStages];
  Mbarrier k_empty[Config::kStages];  // an arrival of each warp that reads: its buffer may be filled
  Mbarrier v_empty[Config::kStages];

  // By one thread; a barrier of the block has to follow.
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

// The work of the one thread that talks to the copy engine.
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
  // Waits until its buffer is released by the tile kStages before; that one's release is the buffer's
  // (n / kStages - 1)-th. The first round finds fresh barriers, which a wait for parity 1 passes.
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

// The warp has read all it wanted from a buffer. Its products are complete: wgmma_wait was before.
__device__ __forceinline__ void release(Mbarrier& empty) {
  if (threadIdx.x % 32 == 0) empty.arrive();
}

}  // namespace attend
