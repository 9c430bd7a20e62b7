// Splitting of keys, for problems with too few row tiles to fill the GPU. The keys of each row tile are cut into parts,
// one block processes each part, and a merge kernel combines the parts.
// Source: Dao, Haziza, Massa & Sizov, Flash-Decoding for long-context inference (2023)
#pragma once

#include <cstdint>

#include "core/problem.hpp"
#include "cuda/launch/sm90_forward_variant.hpp"
#include "kernels/serving/merge_args.cuh"

namespace attend::cuda {

/// Largest number of parts, equal to the number of states that one merge can combine.
constexpr std::int64_t kSm90MostSplits = kMergeStatesOfLaunch;

/// Returns whether the keys of the problem can be split. Mask lists, lengths on the device and sinks exclude splitting,
/// and so does a ring, whose parts the kernel itself merges. A bias or a score function also excludes it. If such a
/// term is -1e9 for a full row, the lse of a part, rounded to float32, no longer reflects the number of its keys.
[[nodiscard]] bool sm90_forward_can_split(const core::Problem& p);

/// Returns the bytes of the parts' o and lse in the workspace.
[[nodiscard]] std::int64_t sm90_forward_split_bytes(const core::Problem& p, std::int64_t splits);

/// Memory layout of the parts' o and lse. The parts are contiguous, and each part has the shape of the problem's o and
/// lse.
struct Sm90ForwardParts {
  float* o;
  float* lse;
  TensorStrides o_stride;
  TensorStrides lse_stride;

  [[nodiscard]] static Sm90ForwardParts of(const core::Problem& p, std::int64_t splits, void* memory);

  /// Returns the arguments that merge the parts into the problem's o and lse.
  [[nodiscard]] MergeArgs merge_args(const core::Problem& p, std::int64_t splits) const;
};

}  // namespace attend::cuda
