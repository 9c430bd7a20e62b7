// Computes p of a warp's rows for a tile of keys: computes s, applies modifications and masks, and computes the
// exponentials. If Config::kSpeculates is set, p is computed before the row maximum is known (sm80_softmax.cuh).
#pragma once

#include "sm80_products.cuh"

namespace attend {

// Returns the place in shared memory in which m and l of this thread's row group are saved. The code adds the thread's
// offset first and the constant offset last. In the other order the compiler would keep the sum in a register, or spill
// it.
template <class Config>
[[nodiscard]] __device__ __forceinline__ float4& sm80_parking(Sm80Storage<Config>& smem, int group) {
  using Storage = Sm80Storage<Config>;
  auto* mine = reinterpret_cast<unsigned char*>(&smem) + recomputed(threadIdx.x) * sizeof(float4);
  return *reinterpret_cast<float4*>(mine + Storage::kParkedAt + group * Config::kThreads * sizeof(float4));
}

// sm80_park() moves m and l from registers to shared memory, and sm80_fetch() moves them back.
template <class Config>
__device__ __forceinline__ void sm80_park(const Sm80Rows<Config> (&rows)[Config::kRowGroups],
                                          Sm80Storage<Config>& smem) {
  if constexpr (Config::kParks) {
#pragma unroll
    for (int r = 0; r < Config::kRowGroups; ++r) {
      const auto& softmax = rows[r].softmax;
      sm80_parking(smem, r) = {softmax.row_max[0], softmax.row_max[1], softmax.row_sum[0], softmax.row_sum[1]};
    }
  }
}
template <class Config>
__device__ __forceinline__ void sm80_fetch(Sm80Rows<Config> (&rows)[Config::kRowGroups], Sm80Storage<Config>& smem) {
  if constexpr (Config::kParks) {
#pragma unroll
    for (int r = 0; r < Config::kRowGroups; ++r) {
      const float4 state = sm80_parking(smem, r);
      rows[r].softmax.row_max[0] = state.x;
      rows[r].softmax.row_max[1] = state.y;
      rows[r].softmax.row_sum[0] = state.z;
      rows[r].softmax.row_sum[1] = state.w;
    }
  }
}

// Applies modifications and masks to the scores of tile n. The scores start at key `first_key` of the tile.
template <class Config>
__device__ __forceinline__ void sm80_apply_rules(Sm80Rows<Config> (&rows)[Config::kRowGroups],
                                                 const Sm80Storage<Config>& smem, int n, int first_key) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int r = 0; r < Config::kRowGroups; ++r) {
    const auto tile = smem.block.tile_of_group(sm80_first_row<Config>(r), n, first_key);
    if (!Config::kSpeculates && tile.template all_visible<kMmaRows, Config::kBlockN>()) {
      apply_rules<true>(tile, rows[r].s, lane);
    } else {
      apply_rules<false>(tile, rows[r].s, lane);
    }
  }
}

// Computes s of tile n, whose k is in buffer `buffer`. `thread` is threadIdx.x. is_whole states that all rows of the
// warp see all keys of the tile.
template <class Config>
__device__ __forceinline__ void sm80_scores(Sm80Rows<Config> (&rows)[Config::kRowGroups],
                                            const Sm80Storage<Config>& smem, uint32 thread, int n, int buffer,
                                            bool is_whole) {
  sm80_multiply_qk(rows, smem.q_or_o, smem.stage_of(buffer).k, thread);
  if (Config::kSpeculates && is_whole) return;
  sm80_apply_rules(rows, smem, n, 0);
}

// Replaces unmasked scores s by p relative to the current maxima. Returns whether these maxima are large enough. All
// lanes of the warp get the same result. If the maxima are too small, s is lost, but no other state has changed.
template <class Config>
[[nodiscard]] __device__ __forceinline__ bool sm80_speculate(Sm80Rows<Config> (&rows)[Config::kRowGroups],
                                                             Sm80Storage<Config>& smem) {
  const float scale_log2 = smem.block.scale_log2;
  float sum[Config::kRowGroups][kRowsOfThread];
  bool serves = true;  // whether m was large enough; false for NaN
  sm80_fetch(rows, smem);
#pragma unroll
  for (int r = 0; r < Config::kRowGroups; ++r) {
    const float base[kRowsOfThread] = {rows[r].softmax.row_max[0] * scale_log2,
                                       rows[r].softmax.row_max[1] * scale_log2};
#pragma unroll
    for (int i = 0; i < Config::kBlockN / 2; ++i) {
      rows[r].s[i] = exp2_fast(fmaf(rows[r].s[i], scale_log2, -base[i / 2 % 2]));
    }
#pragma unroll
    for (int h = 0; h < kRowsOfThread; ++h) {
      sum[r][h] = thread_row_sum(rows[r].s, h);
      serves &= sum[r][h] <= kLargestTileSum && rows[r].softmax.can_fold(base[h]);
    }
  }
  if (!__all_sync(kAllLanes, serves)) return false;
#pragma unroll
  for (int i = 0; i < Config::kRowGroups * kRowsOfThread; ++i) {
    rows[i / 2].softmax.row_sum[i % 2] += sum[i / 2][i % 2];
  }
  sm80_park(rows, smem);
  return true;
}

// Computes p of tile n, which is in buffer `buffer`, with its modifications and masks. sm80_scores() describes
// is_whole. is_first states that this is the warp's first tile, so its row maxima must be found.
template <class Config>
__device__ __forceinline__ void sm80_weights(Sm80Rows<Config> (&rows)[Config::kRowGroups], Sm80Storage<Config>& smem,
                                             int n, int buffer, bool is_whole, bool is_first) {
  if constexpr (Config::kSpeculates) {
    const bool speculates = is_whole && !is_first;
    uint32 thread = threadIdx.x;
    if (!Config::kFuses || !speculates) sm80_scores(rows, smem, thread, n, buffer, is_whole);
    if (speculates) {
      if (Config::kFuses) sm80_multiply_qk(rows, smem.q_or_o, smem.stage_of(buffer).k, thread);
      if (sm80_speculate(rows, smem)) return;
      // The product is rarely computed again. The added zero keeps the compiler from holding its addresses in
      // registers.
      thread += smem.block.zero;
      sm80_multiply_qk(rows, smem.q_or_o, smem.stage_of(buffer + smem.block.zero).k, thread);
    }
    sm80_fetch(rows, smem);
    follow_maxima(rows, smem.block.scale_log2);
    sm80_park(rows, smem);
  } else {
    const float scale_log2 = smem.block.scale_log2;
    sm80_scores(rows, smem, threadIdx.x, n, buffer, false);
    raise_maxima(rows, scale_log2);
#pragma unroll
    for (int r = 0; r < Config::kRowGroups; ++r) {
      exp2_rows<ScoreUnits::kNatural>(rows[r].s, scale_log2, rows[r].softmax.row_max);
      rows[r].softmax.add_to_sum(rows[r].s);  // l is the sum of p before dropout
      if constexpr (Score<Config>::kDrops) {
        uint32 kept[kKeptWords<Config::kBlockN / 2>];
        const auto tile = smem.block.tile_of_group(sm80_first_row<Config>(r), n);
        kept_bits<Config::kBlockN / 2>(tile, kept, threadIdx.x % 32);
        drop(rows[r].s, kept);
      }
    }
  }
}

}  // namespace attend
