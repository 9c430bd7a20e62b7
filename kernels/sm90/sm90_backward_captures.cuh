// Gradients of tensors that the caller's function reads, by the warpgroup that computes dq.
//
// Functions have slope 1, so ds of q.k is the gradient of their value, and it lies in shared memory for dq. Threads add
// it up along lines of pairs that read the same elements with the same derivatives (CustomScoreCode::kLines), and add a
// product for each line (captured_shares.cuh).
#pragma once

#include "../attention/captured_shares.cuh"
#include "../attention/score_mods.cuh"
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
    constexpr int kRows = Config::kBlockM, kKeys = Config::kBlockN;
    constexpr int kCount = kLines == GradientLines::kDistance ? kRows + kKeys - 1
                           : kLines == GradientLines::kKey    ? kKeys
                                                              : kRows;
    const int row = row_tile * kRows;
#pragma unroll 1
    for (int first = static_cast<int>(threadIdx.x % kWarpgroup / 32 * 32); first < kCount; first += kWarpgroup) {
      const int line = first + static_cast<int>(threadIdx.x % 32);
      const bool exists = line < kCount;
      if constexpr (kLines == GradientLines::kDistance) {
        const int lead = line - (kRows - 1);  // of the key before the row, in the tile
        float sum = 0.0f;
#pragma unroll 8
        for (int r = 0; r < kRows; ++r) {
          const int key = r + lead;
          if (0 <= key && key < keys) sum += element(ds, r, key);
        }
        const int r = max(0, -lead);
        add_line(args, item, head, row + r, item.key + r + lead, sum);
      } else if constexpr (kLines == GradientLines::kKey) {
        float sum = 0.0f;
#pragma unroll 8
        for (int r = 0; line < keys && r < kRows; ++r) sum += element(ds, r, line);
        add_line(args, item, head, row, item.key + line, sum);
      } else if constexpr (kLines == GradientLines::kRow) {
        float sum = 0.0f;
#pragma unroll 8
        for (int key = 0; exists && key < keys; ++key) sum += element(ds, line, key);
        add_line(args, item, head, row + line, item.key, sum);
      } else {
#pragma unroll 1
        for (int key = 0; key < keys; ++key) {
          add_line(args, item, head, row + line, item.key + key, element(ds, line, key));
        }
      }
    }
  }

 private:
  [[nodiscard]] static __device__ __forceinline__ float element(const Bits16* ds, int row, int key) {
    constexpr int kChunk = 8;  // of a row of a panel
    const int chunk = key % kPanelColumns / kChunk ^ row % 8;
    return ElementOf<Config>::to_float(
        ds[(key / kPanelColumns * Config::kBlockM + row) * kPanelColumns + chunk * kChunk + key % kChunk]);
  }

  // A pair of the lane's line, and the line's sum: 0 if no pair of it exists. By whole warps.
  static __device__ __forceinline__ void add_line(const Sm90BackwardArgs& args, const Sm90BackwardItem& item, int head,
                                                  int row, int key, float sum) {
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
