// Rung 18, wgmma_specialized: computes o = softmax(scale q k^T) v with one warpgroup that loads and several that
// compute.
//
// Shapes:   q (batch, heads, seqlen_q, d), k and v (batch, heads_k, seqlen_k, d); any strides whose last is 1.
// Supports: float16 and bfloat16, d = 64 and 128, full and causal masks, and grouped heads. Addresses and strides must
// be multiples of 16 bytes. Requires sm_90a.
// Before:   In rung 17, wgmma_tma, a thread of a computing warpgroup issues the copies and waits for free buffers.
//           There are only two warpgroups, so the tensor cores are idle whenever the two compute their softmax at the
//           same time.
// After:    A producer warpgroup only loads, and gives up most of its registers (setmaxnreg). Three consumer warpgroups
//           of 64 rows each only compute.
// Why:      512 threads share 64 K registers, which is 128 for each. At d = 128, s and o of a consumer alone need 128.
//           If each thread of the producer has 24, each thread of a consumer has 160, so a third consumer warpgroup
//           fits. While one consumer computes its softmax, the other two have products for the tensor cores. 192 rows
//           instead of 128 share a tile of k and v, which saves a third of the traffic from the L2 cache.
// Costs:    Warpgroups are out of step only by chance, and each still waits for its products before it continues. A
//           quarter of the threads is idle. In the last tile of rows, up to 191 rows may be missing, which matters in
//           short sequences.
// Measured: 684 TFLOP/s without a mask and 620 with a causal mask, in bfloat16 with batch 2, 16 heads, 8192 rows and
//           keys, d = 128. H200, CUDA 13.0.
// Run:      `attend run --compute wgmma_specialized --data DIR`, with data made by `attend generate --dtype bf16`.
// Source:   Shah et al., FlashAttention-3 (2024), Algorithm 1.
#pragma once

#include "../isa/setmaxnreg.cuh"
#include "pieces/tma_tiles.cuh"
#include "pieces/wgmma_attention.cuh"

namespace attend {

// Issues all copies of the block, in the order in which the tiles are used. One thread calls it.
template <class Config>
__device__ __forceinline__ void produce(const TmaTileLoader<Config>& loader, int key_tiles) {
  if (key_tiles > 0) loader.load_q();
#pragma unroll 1
  for (int n = 0; n < key_tiles; ++n) {
    loader.load_k(n);
    loader.load_v(n);
  }
}

// Computes 64 query rows with one warpgroup. `thread` is the number of the thread among all consumers.
template <class Config>
__device__ __forceinline__ void consume(const ForwardArgs& args, TmaStorage<Config>& smem, const RowTile& tile,
                                        int thread) {
  const ThreadRows rows = ThreadRows::of_thread(tile, thread);
  const int warpgroup = __shfl_sync(kAllLanes, thread / kWarpgroup, 0);  // the shuffle puts the number into a uniform
                                                                         // register
  const uint32 q_smem = smem_address(smem.q) + warpgroup * kWarpgroupRows * kSwizzleBytes;
  const float scale_log2 = args.scale * kLog2E;
  OnlineSoftmax softmax;
  float o[WarpgroupTile<Config>::kOutputs] = {};
  PipelineState<Config::kStages> at;
  if (tile.key_tiles > 0) smem.q_full.wait(0);  // waits until q has arrived; it may then be read
#pragma unroll 1
  for (int n = 0; n < tile.key_tiles; ++n) {
    float s[WarpgroupTile<Config>::kScores];
    smem.k_full[at.stage].wait(at.parity);  // waits until k of tile n has arrived; it may then be read
    begin_qk<Config>(s, q_smem, smem_address(smem.k[at.stage]));
    wgmma_wait<0>(s);
    release(smem.k_empty[at.stage]);  // the producer may then refill the buffer
    if (n >= tile.unmasked_tiles) mask_tile<Config>(s, rows, n * Config::kBlockN);
    float rescale[kRowsOfThread];
    softmax.update(s, scale_log2, rescale);  // s holds p from here on
    scale_rows(o, rescale);
    uint32 p[WarpgroupTile<Config>::kPairs];
    pack_p<ElementOf<Config>>(p, s);
    smem.v_full[at.stage].wait(at.parity);  // waits until v of tile n has arrived; it may then be read
    begin_pv<Config>(o, p, smem_address(smem.v[at.stage]));
    wgmma_wait<0>(o);
    release(smem.v_empty[at.stage]);
    at.advance();
  }
  store_rows<Config>(args, tile, rows, softmax, o);
}

// Computes a tile of rows. The grid has one block for each tile of kBlockM rows of every query head. Warpgroup 0 loads,
// and each other warpgroup computes 64 rows.
template <class Config>
__device__ void wgmma_specialized_forward(const ForwardTmaArgs& args) {
  constexpr int kConsumers = Config::kBlockM / kWarpgroupRows;
  // Number of registers of a thread, in a block that fills the register file.
  constexpr int kRegistersOfThreads = 65536 / Config::kThreads / 8 * 8;
  static_assert(Config::kThreads == (1 + kConsumers) * kWarpgroup);
  static_assert(
      Config::kProducerRegisters + kConsumers * Config::kConsumerRegisters <= (1 + kConsumers) * kRegistersOfThreads,
      "taking registers would wait for ever");
  static_assert(Config::kSmemBytes == sizeof(TmaStorage<Config>));
  extern __shared__ __align__(kSwizzleAtom) unsigned char smem_bytes[];
  auto& smem = *reinterpret_cast<TmaStorage<Config>*>(smem_bytes);

  const RowTile tile = RowTile::of_block<Config>(args.base, blockIdx.x);
  if (threadIdx.x == 0) smem.init_barriers();
  __syncthreads();  // waits until the barriers are initialised; all threads may then wait, arrive and load
  if (threadIdx.x < kWarpgroup) {
    give_registers<Config::kProducerRegisters>();
    if (threadIdx.x == 0) produce(TmaTileLoader<Config>{smem, args, tile}, tile.key_tiles);
  } else {
    take_registers<Config::kConsumerRegisters>();
    consume<Config>(args.base, smem, tile, static_cast<int>(threadIdx.x) - kWarpgroup);
  }
}

}  // namespace attend
