// Gradients of tensors that the caller's function reads, by the warpgroup that computes dq.
//
// Functions have slope 1, so ds of q.k is the gradient of their value, and it lies in shared memory for dq. Threads add
// it up along lines of pairs that read the same elements with the same derivatives (CustomScoreCode::kLines), and add a
// product for each line (captured_shares.cuh).
#pragma once

#include "../attention/captured_shares.cuh"
#include "../attention/score_mods.cuh"
#include "sm90_backward_line_sums.cuh"
#include "sm90_backward_storage.cuh"
#include "sm90_backward_units.cuh"

namespace attend {

// Families that refuse such gradients have no constant for it.
template <class Config>
[[nodiscard]] ATTEND_HOST_DEVICE constexpr bool has_captured_gradients() {
  if constexpr (requires { Config::kHasCapturedGradients; }) return Config::kHasCapturedGradients;
  return false;
}

// Code: looked at only where there is one that has gradients.
template <class Config, class Code = CustomScoreCode>
class BackwardCaptureSums {
 public:
  // ds: of a tile of rows, a panel of rows for each 64 keys, swizzled; only so many keys are seen by any of the rows.
  // By the warpgroup's warps, which need not be together.
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
  // Have all pairs of the tile the same gradients?
  [[nodiscard]] static __device__ __forceinline__ bool are_same(int first_row, int first_key) {
    const int distance = first_row - first_key;
    return distance - (Config::kBlockN - 1) >= Code::kSameFrom || distance + (Config::kBlockM - 1) <= Code::kSameUntil;
  }

  // A row for each lane of two warps.
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

  // A pair of the lane's line, and the line's sum: 0 if no pair of it is seen. By whole warps.
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
