// Rung 17, wgmma_tma: computes o = softmax(scale q k^T) v with tiles that the copy engine loads.
//
// Shapes:   q (batch, heads, seqlen_q, d), k and v (batch, heads_k, seqlen_k, d); any strides whose last is 1.
// Supports: float16 and bfloat16, d = 64 and 128, full and causal masks, and grouped heads. Addresses and strides must
// be multiples of 16 bytes. Requires sm_90a.
// Before:   In rung 16, wgmma, every thread computes addresses and issues 16 copies for each tile. The block waits at a
//           barrier for each tile. So the two warpgroups compute their products, and then their softmax, at about the
//           same time.
// After:    One thread starts the copy of an entire tile with one instruction of the copy engine (TMA). mbarriers
//           signal the arrival and the release of a tile. So a warpgroup waits only for the data, and not for the other
//           warpgroup.
// Why:      The copies need no issue slots, no address registers and no pass through the L1 cache. One warpgroup may be
//           up to a tile ahead of the other, so one computes exponentials while the other uses the tensor cores.
// Costs:    The thread that issues copies belongs to a warpgroup that computes. If it has to wait until the other
//           warpgroup releases a buffer, its warpgroup waits too.
// Measured: 550 TFLOP/s without a mask and 502 with a causal mask, in bfloat16 with batch 2, 16 heads, 8192 rows and
//           keys, d = 128. H200, CUDA 13.0.
// Run:      `attend run --compute wgmma_tma --data DIR`, with data made by `attend generate --dtype bf16`.
// Source:   Dao, FlashAttention-2 (2023), Algorithm 1; PTX ISA, cp.async.bulk.tensor and mbarrier, for the copies.
#pragma once

#include "pieces/tma_tiles.cuh"
#include "pieces/wgmma_attention.cuh"

namespace attend {

// Computes a tile of rows. The grid has one block for each tile of kBlockM rows of every query head. A warpgroup has 64
// rows.
template <class Config>
__device__ void wgmma_tma_forward(const ForwardTmaArgs& args) {
  static_assert(Config::kThreads == Config::kBlockM / kWarpgroupRows * kWarpgroup);
  static_assert(Config::kSmemBytes == sizeof(TmaStorage<Config>));
  extern __shared__ __align__(kSwizzleAtom) unsigned char smem_bytes[];
  auto& smem = *reinterpret_cast<TmaStorage<Config>*>(smem_bytes);

  const RowTile tile = RowTile::of_block<Config>(args.base, blockIdx.x);
  const ThreadRows rows = ThreadRows::of_thread(tile, static_cast<int>(threadIdx.x));
  const TmaTileLoader<Config> loader = {smem, args, tile};
  const bool is_loader = threadIdx.x == 0;
  if (is_loader) smem.init_barriers();
  __syncthreads();  // waits until the barriers are initialised; all threads may then wait, arrive and load
  if (is_loader && tile.key_tiles > 0) {
    loader.load_q();
    for (int n = 0; n < Config::kStages && n < tile.key_tiles; ++n) {
      loader.load_k(n);
      loader.load_v(n);
    }
  }
  __syncwarp();  // waits for all lanes, because the matrix products need full warps

  // The shuffle puts the number into a uniform register.
  const int warpgroup = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
  const uint32 q_smem = smem_address(smem.q) + warpgroup * kWarpgroupRows * kSwizzleBytes;
  const float scale_log2 = args.base.scale * kLog2E;
  OnlineSoftmax softmax;
  float o[WarpgroupTile<Config>::kOutputs] = {};
  PipelineState<Config::kStages> at;
  if (tile.key_tiles > 0) smem.q_full.wait(0);  // waits until q has arrived; it may then be read
#pragma unroll 1
  for (int n = 0; n < tile.key_tiles; ++n) {
    // This warpgroup has finished the previous tile, so the copy of the tile that uses the same buffer may start
    const int next = n - 1 + Config::kStages;
    const bool loads_next = is_loader && n > 0 && next < tile.key_tiles;
    float s[WarpgroupTile<Config>::kScores];
    smem.k_full[at.stage].wait(at.parity);  // waits until k of tile n has arrived; it may then be read
    begin_qk<Config>(s, q_smem, smem_address(smem.k[at.stage]));
    if (loads_next) loader.load_k(next);  // this copy overlaps with the product
    __syncwarp();
    wgmma_wait<0>(s);
    release(smem.k_empty[at.stage]);
    if (n >= tile.unmasked_tiles) mask_tile<Config>(s, rows, n * Config::kBlockN);
    float rescale[kRowsOfThread];
    softmax.update(s, scale_log2, rescale);  // s holds p from here on
    scale_rows(o, rescale);
    uint32 p[WarpgroupTile<Config>::kPairs];
    pack_p<ElementOf<Config>>(p, s);
    smem.v_full[at.stage].wait(at.parity);  // waits until v of tile n has arrived; it may then be read
    begin_pv<Config>(o, p, smem_address(smem.v[at.stage]));
    if (loads_next) loader.load_v(next);
    __syncwarp();
    wgmma_wait<0>(o);
    release(smem.v_empty[at.stage]);
    at.advance();
  }
  store_rows<Config>(args.base, tile, rows, softmax, o);
}

}  // namespace attend
