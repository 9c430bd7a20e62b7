// Gradients of tensors that a custom score reads, computed by the warpgroup that computes dq.
//
// These custom scores have slope 1, so ds of q.k is the gradient of their value. ds is already in shared memory, for
// dq. Threads sum ds along lines of pairs that read the same elements with the same derivatives
// (CustomScoreCode::kLines). They then add one product per line (captured_shares.cuh).
#pragma once

#include "../attention/captured_shares.cuh"
#include "../attention/score_mods.cuh"
#include "sm90_backward_line_sums.cuh"
#include "sm90_backward_storage.cuh"
#include "sm90_backward_units.cuh"

namespace attend {

// Whether the kernel computes such gradients. Families that refuse them have no constant for it.
template <class Config>
[[nodiscard]] ATTEND_HOST_DEVICE constexpr bool has_captured_gradients() {
  if constexpr (requires { Config::kHasCapturedGradients; }) return Config::kHasCapturedGradients;
  return false;
}

// Code: a template parameter, so that it is only instantiated if a custom score has gradients.
template <class Config, class Code = CustomScoreCode>
class BackwardCaptureSums {
 public:
  // Adds the shares of one query tile. ds: swizzled, with a panel of rows for each 64 keys. keys: number of keys that
  // any of the rows sees. The warps of the warpgroup call this; they need not be synchronised.
  static __device__ __forceinline__ void add(const Sm90BackwardArgs& args, const Sm90BackwardItem& item, int head,
                                             int row_tile, const Bits16* ds, int keys) {
    constexpr GradientLines kLines = Code::kLines;
    const int first_row = row_tile * Config::kBlockM;
    const auto add_one = [&](int row, int key, float sum) {
      add_line(args, item, head, first_row + row, item.key + key, sum);
    };
    if (kLines == GradientLines::kDistance && are_same(first_row, item.key)) {
      BackwardLineSums<Config>::by_row(ds, keys, add_one);  // a row's pairs are on one line, and so are all others
    } else if constexpr (kLines == GradientLines::kDistance) {
      BackwardLineSums<Config>::by_distance(ds, keys, add_one);
    } else if constexpr (kLines == GradientLines::kKey) {
      BackwardLineSums<Config>::by_key(ds, keys, add_one);
    } else if constexpr (kLines == GradientLines::kRow) {
      BackwardLineSums<Config>::by_row(ds, keys, add_one);
    } else {
      add_pairs(ds, keys, add_one);
    }
  }

 private:
  // Returns whether all pairs of the tile have the same gradients.
  [[nodiscard]] static __device__ __forceinline__ bool are_same(int first_row, int first_key) {
    const int distance = first_row - first_key;
    return distance - (Config::kBlockN - 1) >= Code::kSameFrom || distance + (Config::kBlockM - 1) <= Code::kSameUntil;
  }

  // Adds each pair separately. Two warps have one row per lane.
  static __device__ __forceinline__ void add_pairs(const Bits16* ds, int keys, auto add) {
    const int row = static_cast<int>(threadIdx.x % kWarpgroup);
    if (row >= Config::kBlockM) return;
#pragma unroll 1
    for (int key = 0; key < keys; ++key) add(row, key, element(ds, row, key));
  }

  [[nodiscard]] static __device__ __forceinline__ float element(const Bits16* ds, int row, int key) {
    constexpr int kChunk = 8;  // of a row of a panel
    const int chunk = key % kPanelColumns / kChunk ^ row % 8;
    return ElementOf<Config>::to_float(
        ds[(key / kPanelColumns * Config::kBlockM + row) * kPanelColumns + chunk * kChunk + key % kChunk]);
  }

  // Adds the share of a line. (row, key): a pair of the lane's line. sum: of the line, or 0 if no pair is seen. All
  // lanes of a warp call this.
  static __device__ __forceinline__ void add_line(const Sm90BackwardArgs& args, const Sm90BackwardItem& item, int head,
                                                  int row, int key, float sum) {
    if (__all_sync(kAllLanes, sum == 0.0f)) return;
    const ScorePoint<float> at = {0.0f,
                                  item.sequence,
                                  head,
                                  row,
                                  key,
                                  item.seqlen_q,
                                  item.seqlen_k,
                                  static_cast<float>(row),
                                  static_cast<float>(key),
                                  static_cast<float>(row - key),
                                  0.0f};
    add_captured_shares(at, args.options.captured, args.captured_gradients, sum * args.captured_scale);
  }
};

}  // namespace attend
