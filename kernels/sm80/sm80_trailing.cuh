// p of a tile of keys while p v of the tile before is multiplied (Config::kTrails): a warp's exponentials stand between
// its own products, not only between those of other warps. p waits in 16 bits.
#pragma once

#include "sm80_weights.cuh"

namespace attend {

// v of the tile before n. Chosen between two, not computed: else its place stays in a register.
template <class Config>
[[nodiscard]] __device__ __forceinline__ const typename Sm80Storage<Config>::VTile& sm80_v_before(
    const Sm80Storage<Config>& smem, int n) {
  return n % kSm80Stages == 0 ? smem.stage[1].v : smem.stage[0].v;
}

// p becomes an operand; s is free.
template <class Config>
__device__ __forceinline__ void sm80_pack_p(Sm80Rows<Config> (&rows)[Config::kRowGroups]) {
#pragma unroll
  for (int r = 0; r < Config::kRowGroups; ++r) {
#pragma unroll
    for (int i = 0; i < Config::kBlockN / kMmaDepth; ++i) {
      rows[r].p[i] = pack_operand_a<ElementOf<Config>>(rows[r].s + i * kMmaDepth / 2);
    }
  }
}

// p of tile n where its maxima have to be looked for.
template <class Config>
__device__ __forceinline__ void sm80_first_weights(Sm80Rows<Config> (&rows)[Config::kRowGroups],
                                                   Sm80Storage<Config>& smem, int n, bool is_whole) {
  sm80_scores(rows, smem, threadIdx.x, n, is_whole);
  sm80_fetch(rows, smem);
  follow_maxima(rows, smem.block.scale_log2);
  sm80_park(rows, smem);
}

// s of tile n, all of which is seen; then o += p v of the tile before, and beside it p of this one.
template <class Config>
__device__ __forceinline__ void sm80_weights_beside_pv(Sm80Rows<Config> (&rows)[Config::kRowGroups],
                                                       Sm80Storage<Config>& smem, int n) {
  constexpr int kCount = Config::kRowGroups * Config::kBlockN / 2;  // of a lane's p
  constexpr int kBlocks = Config::kBlockN / kMmaDepth * (Sm80Shape<Config>::kColumnsV / kMmaDepth);  // of v
  sm80_multiply_qk(rows, smem.q_or_o, smem.stage_of(n).k, threadIdx.x);
  const float scale_log2 = smem.block.scale_log2;
  sm80_fetch(rows, smem);
  float base[Config::kRowGroups * kRowsOfThread];
  float sum[Config::kRowGroups * kRowsOfThread] = {};
#pragma unroll
  for (int i = 0; i < Config::kRowGroups * kRowsOfThread; ++i) {
    base[i] = rows[i / kRowsOfThread].softmax.row_max[i % kRowsOfThread] * scale_log2;
  }
  sm80_multiply_pv(rows, sm80_v_before(smem, n), [&](int block) {
#pragma unroll
    for (int i = block * kCount / kBlocks; i < (block + 1) * kCount / kBlocks; ++i) {
      const int r = i / (Config::kBlockN / 2);
      const int row = r * kRowsOfThread + i / 2 % 2;
      float& s = rows[r].s[i % (Config::kBlockN / 2)];
      s = exp2_fast(fmaf(s, scale_log2, -base[row]));
      sum[row] += s;
    }
  });
  bool serves = true;  // false also for NaN
#pragma unroll
  for (int i = 0; i < Config::kRowGroups * kRowsOfThread; ++i) {
    serves &= sum[i] <= kLargestTileSum && rows[i / kRowsOfThread].softmax.can_fold(base[i]);
  }
  if (__all_sync(kAllLanes, serves)) {
#pragma unroll
    for (int i = 0; i < Config::kRowGroups * kRowsOfThread; ++i) {
      rows[i / kRowsOfThread].softmax.row_sum[i % kRowsOfThread] += sum[i];
    }
    sm80_park(rows, smem);
  } else {
    // So that the compiler keeps no address in registers for what is rare.
    const uint32 zero = smem.block.zero;
    sm80_multiply_qk(rows, smem.q_or_o, smem.stage_of(n + zero).k, threadIdx.x + zero);
    sm80_fetch(rows, smem);
    follow_maxima(rows, scale_log2);
    sm80_park(rows, smem);
  }
}

}  // namespace attend
