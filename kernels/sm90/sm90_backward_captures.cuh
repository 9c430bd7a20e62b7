// Gradients of the tensors that a custom score modification reads. The warpgroup that computes dq also computes these.
//
// These custom scores have derivative 1 with respect to q.k, so ds is the gradient of their result. ds is already in
// shared memory for dq. A line is a set of (row, key) pairs that read the same tensor elements with the same
// derivatives (CustomScoreCode::kLines). Threads first sum ds along each line. For each line they then add one product
// to the gradient (captured_shares.cuh).
#pragma once

#include "../attention/captured_shares.cuh"
#include "../attention/score_mods.cuh"
#include "sm90_backward_line_sums.cuh"
#include "sm90_backward_storage.cuh"
#include "sm90_backward_units.cuh"

namespace attend {

// Returns whether the kernel computes gradients of captured tensors. Kernel families that do not support these
// gradients define no constant for them.
template <class Config>
[[nodiscard]] ATTEND_HOST_DEVICE constexpr bool has_captured_gradients() {
  if constexpr (requires { Config::kHasCapturedGradients; }) return Config::kHasCapturedGradients;
  return false;
}

// `Code` is a template parameter, so that the class is instantiated only if a custom score has gradients.
template <class Config, class Code = CustomScoreCode>
class BackwardCaptureSums {
 public:
  // Adds the contributions of one query tile. `ds` is swizzled, with one panel of rows for each 64 keys. `keys` is the
  // number of keys that some row of the tile sees. All warps of the warpgroup must call this, and they need not be
  // synchronised.
  static __device__ __forceinline__ void add(const Sm90BackwardArgs& args, const Sm90BackwardItem& item, int head,
                                             int row_tile, const Bits16* ds, int keys) {
    constexpr GradientLines kLines = Code::kLines;
    const int first_row = row_tile * Config::kBlockM;
    const auto add_one = [&](int row, int key, float sum) {
      add_line(args, item, head, first_row + row, item.key + key, sum);
    };
    if (kLines == GradientLines::kDistance && are_same(first_row, item.key)) {
      // All pairs of the tile have the same gradient, so the sums of rows are enough.
      BackwardLineSums<Config>::by_row(ds, keys, add_one);
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
  // Returns whether all pairs of the tile have the same gradient. This is true if all distances row - key are at least
  // kSameFrom, or if all are at most kSameUntil.
  [[nodiscard]] static __device__ __forceinline__ bool are_same(int first_row, int first_key) {
    const int distance = first_row - first_key;
    return distance - (Config::kBlockN - 1) >= Code::kSameFrom || distance + (Config::kBlockM - 1) <= Code::kSameUntil;
  }

  // Adds each pair separately. The lanes of two warps have one query row each.
  static __device__ __forceinline__ void add_pairs(const Bits16* ds, int keys, auto add) {
    const int row = static_cast<int>(threadIdx.x % kWarpgroup);
    if (row >= Config::kBlockM) return;
#pragma unroll 1
    for (int key = 0; key < keys; ++key) add(row, key, element(ds, row, key));
  }

  [[nodiscard]] static __device__ __forceinline__ float element(const Bits16* ds, int row, int key) {
    constexpr int kChunk = 8;  // elements in a 16-byte chunk of a panel row
    const int chunk = key % kPanelColumns / kChunk ^ row % 8;
    return ElementOf<Config>::to_float(
        ds[(key / kPanelColumns * Config::kBlockM + row) * kPanelColumns + chunk * kChunk + key % kChunk]);
  }

  // Adds the contribution of one line per lane. `sum` is the sum of ds along the line, or 0 if no pair of the line is
  // visible. (row, key) is any pair of the line. All lanes of a warp must call this.
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
