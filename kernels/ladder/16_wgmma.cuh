// Rung 16, wgmma: computes o = softmax(scale q k^T) v with the warpgroup matrix product of Hopper.
//
// Shapes:   q (batch, heads, seqlen_q, d), k and v (batch, heads_k, seqlen_k, d); any strides whose last is 1.
// Supports: float16 and bfloat16, d = 64 and 128, full and causal masks, and grouped heads. Addresses and strides must
// be multiples of 16 bytes. Requires sm_90a.
// Before:   In rung 15, mma_qreg_async, each warp multiplies 16 x 8 x 16 with both operands in registers, which
//           ldmatrix loads.
// After:    Four warps together multiply 64 x 128 x 16. The tensor cores read k and v directly from shared memory, and
//           p from registers. The product is asynchronous, so its warps can do other work at the same time.
// Why:      mma.sync is too slow for the tensor cores of Hopper. One wgmma does the work of 64 mma.sync instructions
//           and of their ldmatrix instructions. k and v are not copied through registers, and a warp issues one
//           instruction instead of 16.
// Costs:    The warps copy the tiles, with 16 chunks of 16 bytes for each thread and tile, and wait at a barrier for
//           each tile. So the softmax of one warpgroup can overlap with the products of the other only between two
//           barriers.
// Measured: 435 TFLOP/s without a mask and 407 with a causal mask, in bfloat16 with batch 2, 16 heads, 8192 rows and
//           keys, d = 128. H200, CUDA 13.0.
// Run:      `attend run --compute wgmma --data DIR`, with data made by `attend generate --dtype bf16`.
// Source:   Dao, FlashAttention-2 (2023), Algorithm 1; PTX ISA, wgmma.mma_async, for the instruction.
#pragma once

#include "../isa/cp_async.cuh"
#include "pieces/wgmma_attention.cuh"

namespace attend {

// k and v have two buffers each. One buffer is multiplied while the other is filled.
template <class Config>
struct alignas(kSwizzleAtom) WgmmaStorage {
  Bits16 q[Config::kBlockM * Config::kHeadDim];
  Bits16 k[2][Config::kBlockN * Config::kHeadDim];
  Bits16 v[2][Config::kBlockN * Config::kHeadDim];
};

// Starts to copy kRows rows into a swizzled tile. All threads of the block call it. Rows from rows_left on become
// zeros, because scores of missing keys must be finite until they are masked, and 0 * v must be 0.
template <class Config, int kRows>
__device__ __forceinline__ void copy_panels(Bits16* smem, const Bits16* gmem, int64 row_stride, int64 rows_left) {
  constexpr int kChunks = Config::kHeadDim / kChunkElements;  // number of chunks in a row
  constexpr int kRowsOfStep = Config::kThreads / kChunks;
  static_assert(kRows % kRowsOfStep == 0 && kRowsOfStep % 8 == 0);
  const int chunk = static_cast<int>(threadIdx.x) % kChunks;
  const int first_row = static_cast<int>(threadIdx.x) / kChunks;
  const uint32 to = smem_address(smem) + swizzled_offset(kRows, first_row, chunk);
  const Bits16* from = gmem + first_row * row_stride + chunk * kChunkElements;
#pragma unroll
  for (int step = 0; step < kRows / kRowsOfStep; ++step) {
    const bool is_inside = first_row + step * kRowsOfStep < rows_left;
    cp_async_16(to + step * kRowsOfStep * kSwizzleBytes, is_inside ? from + step * kRowsOfStep * row_stride : gmem,
                is_inside);
  }
}

// The tiles of keys and values, in order.
template <class Config>
struct WgmmaKeys {
  const Bits16* k;
  const Bits16* v;
  int64 k_row, v_row;  // strides of rows, in elements
  int64 seqlen_k;

  // Starts to copy tile n into its buffer.
  __device__ __forceinline__ void copy(WgmmaStorage<Config>& smem, int n) const {
    const int64 key = static_cast<int64>(n) * Config::kBlockN;
    copy_panels<Config, Config::kBlockN>(smem.k[n % 2], k + key * k_row, k_row, seqlen_k - key);
    copy_panels<Config, Config::kBlockN>(smem.v[n % 2], v + key * v_row, v_row, seqlen_k - key);
  }
};

// Computes a tile of rows. The grid has one block for each tile of kBlockM rows of every query head. A warpgroup has 64
// rows.
template <class Config>
__device__ void wgmma_forward(const ForwardArgs& args) {
  static_assert(Config::kThreads == Config::kBlockM / kWarpgroupRows * kWarpgroup);
  static_assert(Config::kSmemBytes == sizeof(WgmmaStorage<Config>));
  extern __shared__ __align__(kSwizzleAtom) unsigned char smem_bytes[];
  auto& smem = *reinterpret_cast<WgmmaStorage<Config>*>(smem_bytes);

  const RowTile tile = RowTile::of_block<Config>(args, blockIdx.x);
  const ThreadRows rows = ThreadRows::of_thread(tile, static_cast<int>(threadIdx.x));
  const WgmmaKeys<Config> keys = {static_cast<const Bits16*>(args.k) + args.k_stride.offset(tile.batch, tile.head_k, 0),
                                  static_cast<const Bits16*>(args.v) + args.v_stride.offset(tile.batch, tile.head_k, 0),
                                  args.k_stride.row, args.v_stride.row, args.seqlen_k};
  const Bits16* q = static_cast<const Bits16*>(args.q) + args.q_stride.offset(tile.batch, tile.head, tile.row_begin);
  copy_panels<Config, Config::kBlockM>(smem.q, q, args.q_stride.row, args.seqlen_q - tile.row_begin);
  if (tile.key_tiles > 0) keys.copy(smem, 0);
  cp_async_commit();

  // The shuffle puts the number into a uniform register.
  const int warpgroup = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
  const uint32 q_smem = smem_address(smem.q) + warpgroup * kWarpgroupRows * kSwizzleBytes;
  const float scale_log2 = args.scale * kLog2E;
  OnlineSoftmax softmax;
  float o[WarpgroupTile<Config>::kOutputs] = {};
#pragma unroll 1
  for (int n = 0; n < tile.key_tiles; ++n) {
    cp_async_wait<0>();      // waits until this thread's chunks of tile n have arrived
    fence_smem_for_async();  // makes the chunks visible to the tensor cores
    __syncthreads();         // waits for all threads' chunks, and until tile n - 1 has been read; its buffers may then
                             // be overwritten
    if (n + 1 < tile.key_tiles) keys.copy(smem, n + 1);
    cp_async_commit();

    float s[WarpgroupTile<Config>::kScores];
    begin_qk<Config>(s, q_smem, smem_address(smem.k[n % 2]));
    wgmma_wait<0>(s);
    if (n >= tile.unmasked_tiles) mask_tile<Config>(s, rows, n * Config::kBlockN);
    float rescale[kRowsOfThread];
    softmax.update(s, scale_log2, rescale);  // s holds p from here on
    scale_rows(o, rescale);
    uint32 p[WarpgroupTile<Config>::kPairs];
    pack_p<ElementOf<Config>>(p, s);
    begin_pv<Config>(o, p, smem_address(smem.v[n % 2]));
    wgmma_wait<0>(o);
  }
  store_rows<Config>(args, tile, rows, softmax, o);
}

}  // namespace attend
