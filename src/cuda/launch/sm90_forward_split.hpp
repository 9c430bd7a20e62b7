// Splitting of the keys among blocks, for problems with too few row tiles to fill the GPU. The keys of each row tile
// are divided into parts. One block processes each part, and a merge kernel combines the results.
// Source: Dao, Haziza, Massa & Sizov, Flash-Decoding for long-context inference (2023)
#pragma once

#include <cstdint>

#include "core/problem.hpp"
#include "cuda/launch/sm90_forward_variant.hpp"
#include "kernels/serving/merge_args.cuh"

namespace attend::cuda {

/// Largest number of parts. It equals the number of partial results that one launch of the merge kernel can combine.
constexpr std::int64_t kSm90MostSplits = kMergeStatesOfLaunch;

/// Returns whether the keys of the problem can be split. Splitting does not support mask lists, lengths in device
/// memory, sinks, or ring attention, in which the kernel itself merges with earlier results. It also does not support a
/// bias or a score function. A bias, for example, can be -1e9 for all keys of a row. Then the lse of each part, rounded
/// to float32, is the same for any number of keys, and the parts would be merged with wrong weights.
[[nodiscard]] bool sm90_forward_can_split(const core::Problem& p);

/// Returns the size in bytes of the parts' o and lse in the workspace.
[[nodiscard]] std::int64_t sm90_forward_split_bytes(const core::Problem& p, std::int64_t splits);

/// Memory layout of the parts' o and lse. The parts are stored one after another. Each part has the shape of the
/// problem's o and lse.
struct Sm90ForwardParts {
  float* o;
  float* lse;
  TensorStrides o_stride;
  TensorStrides lse_stride;

  [[nodiscard]] static Sm90ForwardParts of(const core::Problem& p, std::int64_t splits, void* memory);

  /// Returns the arguments of the merge kernel, which combines the parts and writes the problem's o and lse.
  [[nodiscard]] MergeArgs merge_args(const core::Problem& p, std::int64_t splits) const;
};

}  // namespace attend::cuda
