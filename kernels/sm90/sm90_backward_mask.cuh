// Which scores of a transposed tile are seen: rows are keys, columns are query rows.
#pragma once

#include "../common/wgmma.cuh"
#include "sm90_backward_work.cuh"

namespace attend {

// Of 64 keys from `key` on and a tile of 64 query rows, spread as an accumulator: what is not seen becomes `unseen`,
// whatever stood there.
template <class Config>
__device__ __forceinline__ void mask_scores(float (&s)[32], const Sm90BackwardItem& item, const BackwardBand& band,
                                            int tile, int key, float unseen) {
  const int lane = static_cast<int>(threadIdx.x % kWarpgroup);
  const int thread_key = key + lane / 32 * 16 + lane % 32 / 4;
  const int row = tile * kBackwardRows + lane % 4 * 2;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    // A row sees keys that are at most band.right after it and at most band.left before it.
    int before = row + item.offset() - (thread_key + 8 * h) + band.right;
    if (Config::kMask == MaskKind::kFull) before = 0;
    if (thread_key + 8 * h >= item.seqlen_k) before = -kNearlyEverywhere;
#pragma unroll
    for (int i = 2 * h; i < 32; i += 4) {
#pragma unroll
      for (int b = 0; b < 2; ++b) {
        const int distance = before + (Config::kMask == MaskKind::kFull ? 0 : i / 4 * 8 + b);
        bool is_seen = distance >= 0;
        if constexpr (Config::kMask == MaskKind::kWindow) {
          is_seen = static_cast<uint32>(distance) <= static_cast<uint32>(band.left) + static_cast<uint32>(band.right);
        }
        if (!is_seen) s[i + b] = unseen;
      }
    }
  }
}

}  // namespace attend
